"""The `uv` of jobs: `uv run` in a project with a uv.lock installs only what the node's own environment lacks, once.

All else is left to uv, also `uv run` itself. Ray starts the workers of a job with the command of its driver
(`uv_runtime_env_hook` of Ray 2.60), which therefore stays as it is: uv gets its instructions from variables.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from mlplatform import overlay
from mlplatform.node import environments

UV = Path(sys.executable).with_name("uv")
"""The program itself."""

_PYTHON = ".".join(map(str, sys.version_info[:3]))

_CHOICES = {"--extra", "--no-extra", "--group", "--no-group", "--only-group"}
_CHOOSING = {"--locked", "--all-extras", "--dev", "--no-dev", "--only-dev", "--no-default-groups", "--all-groups"}
_CHOOSING_VARIABLE = re.compile(r"UV_\w*(DEV|GROUP)")
_VALUES = {"--python", "-p", "--env-file", "--with", "--with-editable", "--with-requirements"}
_FLAGS = {"--frozen", "--module", "-m", "--quiet", "-q", "--verbose", "-v", "--no-progress", "--"}
"""Options of `uv run` that choose packages, with and without a value, and others that change no environment."""

_INSTRUCTIONS = {"UV_PROJECT_ENVIRONMENT", "UV_NO_SYNC"}
"""Variables that make uv use an environment as it is."""

_LOCAL = re.compile(r'^source = \{ (?:directory|editable) = "(.*[^.].*)" \}', re.M)
_RAY = re.compile(r'^name = "ray"\nversion = "(.+)"', re.M)
_REQUIRED = re.compile(r'^requires-python = "(.+)"', re.M)
"""Lines of uv.lock; a parser of TOML takes 0.2 s for 300 packages."""


class Project(NamedTuple):
    """A project with a lock."""

    folder: Path
    lock: str
    is_package: bool
    """True if uv would install the project itself."""
    choice: list[str]
    """Options that choose packages."""
    python: str
    """Version of Python that is asked for, in uv's form; empty if it is this one or any."""

    def key(self) -> str:
        """Return the checksum of all that determines the packages, the files of local ones included."""
        content = [self.lock, (self.folder / "pyproject.toml").read_text(), *self.choice, self.python, sys.version]
        content += [f"{name}={value}" for name, value in sorted(os.environ.items()) if _CHOOSING_VARIABLE.match(name)]
        content += [info.name for info in overlay.packages()]
        for source in sorted(set(_LOCAL.findall(self.lock))):
            for file in sorted(path for path in (self.folder / source).rglob("*") if path.is_file()):
                content += [str(file.relative_to(self.folder / source)), file.read_bytes().hex()]
        return hashlib.sha256(repr(content).encode()).hexdigest()


def project_of(arguments: list[str]) -> Project | None:
    """Return the project of the command line `run ...`; None if uv has to do all of it."""
    options, choice, command = {}, [], arguments[1:]
    while command and command[0].startswith("-") and command[0] != "-":
        name, equals, value = command.pop(0).partition("=")
        if name in _CHOICES | _VALUES:
            options[name] = value = value if equals or not command else command.pop(0)
        elif name not in _CHOOSING | _FLAGS:
            return None
        if name in _CHOICES | _CHOOSING:
            choice.append(f"{name}={value}" if value else name)
    above = [Path.cwd(), *Path.cwd().parents]
    folder = next((folder for folder in above if (folder / "pyproject.toml").is_file()), None)
    script = Path(*command[:1])
    has_metadata = script.is_file() and b"\n# /// script" in b"\n" + script.read_bytes()
    if not folder or not (folder / "uv.lock").is_file() or has_metadata:
        return None
    pins = (file.read_text() for above in above if (file := above / ".python-version").is_file())
    asked = options.get("--python") or options.get("-p") or os.environ.get("UV_PYTHON") or next(pins, "")
    python = asked.partition("\n")[0].strip()
    version = re.sub(r"^(cpython|python)?[@-]?", "", python)
    is_package = "\n[build-system]" in f"\n{(folder / 'pyproject.toml').read_text()}"
    other = "" if f"{_PYTHON}.".startswith(f"{version}.") else python
    return Project(folder, (folder / "uv.lock").read_text(), is_package, choice, other)


def fits(project: Project) -> bool:
    """Return whether a project can use this Python.

    Raises:
        SystemExit: it uses Ray, but not with the Python and the Ray of the nodes.
    """
    from packaging.specifiers import SpecifierSet

    required = found[1] if (found := _REQUIRED.search(project.lock)) else ""
    fitting = not project.python and SpecifierSet(required).contains(_PYTHON)
    if ray := _RAY.search(project.lock):
        ours = next(info.stem[4:] for info in overlay.packages() if info.name.startswith("ray-"))
        if not fitting:
            asked = f"asks for Python {project.python}" if project.python else f"has requires-python = '{required}'"
            sys.exit(f"Ray's nodes have Python {_PYTHON}, but the project {asked}: allow {_PYTHON}, and run `uv lock`.")
        if ray[1] != ours:
            change = f"write ray=={ours} into the dependencies of pyproject.toml, and run `uv lock`."
            sys.exit(f"Ray's nodes have ray {ours}, but uv.lock has {ray[1]}: {change}")
    return fitting


def build(project: Project, folder: Path, limit_gb: float, lock: int) -> None:
    """Install the packages of a lock, in front of the node's own, and remove what is too much.

    Args:
        project: has the lock.
        folder: of the new environment.
        limit_gb: bound on the size of all.
        lock: file that uv inherits: if this process is killed, nothing else builds before uv ends.

    Raises:
        SystemExit: uv failed, and has printed why.
    """
    import subprocess

    from mlplatform_warm.ray import node

    def run(*command: str | Path, pins: bytes | None = None, output: int | None = None) -> bytes:
        done = subprocess.run(
            [UV, *command], input=pins, stdout=output, cwd=project.folder, pass_fds=[lock], check=False,
            env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder)},
        )  # fmt: skip
        return bytes(done.stdout or b"") if not done.returncode else sys.exit(done.returncode)

    print("Installing what uv.lock has and this node lacks, once for all of its jobs.", file=sys.stderr, flush=True)
    overlay.create(folder)
    options = ["--no-editable", *project.choice, *([] if "--locked" in project.choice else ["--frozen"])]
    with overlay.known_to_uv(folder):
        if os.environ.get("UV_DEFAULT_INDEX"):
            # `uv sync` downloads from the addresses in the lock, which are those of its own index (seen in 0.13.8).
            pins = run("export", "--no-header", "--no-emit-project", *options, output=subprocess.PIPE)
            run("pip", "install", "--no-deps", "--python", folder, "--requirement", "-", pins=pins)
        else:
            run("sync", "--inexact", "--no-install-project", *options)
    if project.is_package:
        _register(project.folder, folder)
    node.write_python(folder / "bin")
    environments.evict(folder.parent, limit_gb)


def _register(project: Path, folder: Path) -> None:
    """Write the metadata and the programs of the project itself, whose modules are those of a job's own folder."""
    import tomllib

    about = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    name, version = re.sub(r"[-_.]+", "_", about["name"]), about.get("version", "0")
    groups = {"console_scripts": about.get("scripts", {}), **about.get("entry-points", {})}
    (packages,) = folder.glob("lib/python*/site-packages")
    info = packages / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    with (info / "entry_points.txt").open("w") as file:
        for group, entries in groups.items():
            file.write("\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()), ""]))
    for program, target in groups["console_scripts"].items():
        module, _, function = target.partition(":")
        code = f"import sys, {module}\nsys.exit({module}.{function}())\n"
        overlay.write_program(folder, program, code.encode())


def main(root: str, limit_gb: str, *arguments: str) -> NoReturn:
    """Execute uv, with an environment of the node if the project can use one.

    Args:
        root: folder of the environments.
        limit_gb: bound on their size.
        arguments: of uv.
    """
    variables = dict(os.environ)
    if variables.get("UV_PROJECT_ENVIRONMENT", "").startswith(f"{root}/"):
        # Of an `uv run` that has started this one, perhaps for another project.
        variables = {name: value for name, value in variables.items() if name not in _INSTRUCTIONS}
    project = None if _INSTRUCTIONS & variables.keys() else project_of([*arguments])
    # Where there is an environment, the project has been found to fit.
    if project and ((folder := Path(root) / project.key()).is_dir() or fits(project)):
        try:
            environments.use(folder, partial(build, project, folder, float(limit_gb)))
        except OSError as error:
            sys.exit(f"The packages of uv.lock cannot be installed on this node ({error}): free space on its disk.")
        variables |= {"UV_PROJECT_ENVIRONMENT": str(folder), "UV_NO_SYNC": "1"}
        if project.is_package:
            source = project.folder / "src"
            paths = [str(source if source.is_dir() else project.folder), variables.get("PYTHONPATH")]
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.execve(UV, ["uv", *arguments], variables)  # noqa: S606


def install(root: Path, limit_gb: float) -> Path:
    """Write the `uv` of jobs, with the arguments of `main`, and return its folder."""
    program = root / "bin" / "uv"
    program.parent.mkdir(parents=True, exist_ok=True)
    command = shlex.join([sys.executable, "-I", "-m", __name__, str(root), str(limit_gb)])
    program.write_text(f'#!/bin/sh\n[ "$1" = run ] || exec {shlex.quote(str(UV))} "$@"\nexec {command} "$@"\n')
    program.chmod(0o755)
    return program.parent


if __name__ == "__main__":
    main(*sys.argv[1:])
