"""`uv run` in jobs, with uv itself, an index on this machine, and an image that has a few small packages."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import packaging
import pytest
from package_index import served, wheel
from waiting import wait_for

import mlplatform
import mlplatform_warm
from mlplatform.node import environments, uv_run

UV = next(file for folder in (Path(sys.prefix), *Path(sys.prefix).parents) if (file := folder / "bin/uv").is_file())
"""Of the environment that has made the light one, or of this one."""

PYTHON = uv_run._PYTHON

_BIG = 8_000_000
"""Bytes of a package beside which an environment without packages is small."""

TRAIN = """\
import importlib.metadata, json, os, sys
names = ("plain", "base", "extra", "tool")
versions = {}
for name in names:
    try:
        __import__(name)
        versions[name] = importlib.metadata.version(name)
    except ImportError:
        pass
parent = open(f"/proc/{os.getppid()}/cmdline").read().split("\\0")[:-1]
print(json.dumps({"versions": versions, "prefix": sys.prefix, "parent": parent, "arguments": sys.argv[1:]}))
"""

BACKEND = f"""\
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(str(sys.modules[wheel.__module__].__file__)).parent)!r})
from package_index import wheel
def build_wheel(folder, *_):
    wheel(Path(folder), "part", "1", files={{"part.py": Path("part.py").read_text()}})
    (file,) = Path(folder, "part").iterdir()
    return file.rename(Path(folder, file.name)).name
"""
"""Builds a package without a download."""


def add(index: Path, name: str, version: str, *needs: str) -> None:
    wheel(index, name, version, *needs, files={f"{name}.py": f"VERSION = {version!r}\n"})


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    for version in ("1.0", "2.0", "3.0"):
        add(folder, "base", version)
    for version in ("2.59.0", "2.60.0"):
        wheel(folder, "ray", version)
    add(folder, "plain", "1.0", "base>=1")
    add(folder, "extra", "1.0", "base>=3")
    add(folder, "tool", "1.0")
    add(folder, "client", "1.0", "private", "base")
    return folder


@pytest.fixture(scope="module")
def address(index: Path) -> Iterator[str]:
    with served(index) as address:
        yield address


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, address: str) -> Path:
    """An environment with base 2.0, a version of Ray, a package of no index, a program, a hook, and the platform's."""
    folder = tmp_path_factory.mktemp("image")
    subprocess.run([UV, "venv", "--quiet", "--allow-existing", "--python", sys.executable, folder], check=True)
    add(folder, "private", "1.0")
    private = next((folder / "private").iterdir())
    install = [UV, "pip", "install", "--quiet", "--python", folder, "base==2.0", "ray==2.60.0", private]
    subprocess.run(install, env={**os.environ, "UV_DEFAULT_INDEX": address}, check=True)
    (packages,) = folder.glob("lib/*/site-packages")
    ours = [Path(str(module.__file__)).parents[1] for module in (mlplatform, mlplatform_warm, packaging)]
    (packages / "ours.pth").write_text("".join(f"{path}\n" for path in ours))
    (packages / "hook.pth").write_text("import os; os.environ['HOOK'] = 'ran'\n")
    (folder / "bin/launch").write_text(f"#!{folder}/bin/python\nimport plain, sys\nprint(sys.prefix)\n")
    (folder / "bin/launch").chmod(0o755)
    (folder / "bin/uv").symlink_to(UV)
    return folder


class Node:
    """A node of the image: projects, and the `uv` of its jobs."""

    def __init__(self, folder: Path, image: Path, address: str) -> None:
        self.root, self.image, self.address = folder / "root", image, address
        self.folder = folder / "project"
        caches = {name: str(self.root / path) for name, path in environments.CACHES.items()}
        unset = ("PYTHONPATH", "VIRTUAL_ENV", "PIP_FIND_LINKS")
        self.variables = {name: value for name, value in os.environ.items() if name not in unset} | caches
        self.limit(1)

    def limit(self, gigabytes: float) -> None:
        """Begin with this bound."""
        install = f"from {uv_run.__name__} import *; install(Path({str(self.root)!r}), {gigabytes})"
        subprocess.run([self.image / "bin/python", "-I", "-c", install], check=True)

    def project(self, *needs: str, more: str = "", python: str = ">=3.11", files: dict[str, str] | None = None) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        declared = f'[project]\nname = "my-project"\nversion = "0.5"\nrequires-python = "{python}"\n'
        content = {"pyproject.toml": f"{declared}dependencies = {json.dumps(needs)}\n{more}", "train.py": TRAIN}
        for name, text in (content | (files or {})).items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        command = [UV, "lock", "--quiet", "--default-index", self.address, "--cache-dir", self.root.with_name("lock")]
        subprocess.run(command, cwd=self.folder, env=self.variables, check=True)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.root / "bin/uv", *arguments], env=self.variables | variables, cwd=self.folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **variables)
        output, errors = process.communicate(timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def trained(self, *arguments: str, **variables: str) -> dict[str, object]:
        done = self.run("run", *arguments, "train.py", **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def environments(self) -> list[Path]:
        """Complete environments, that used last at the end."""
        locks = sorted(self.root.glob("*.lock"), key=lambda file: file.stat().st_mtime_ns)
        return [lock.with_suffix("") for lock in locks if lock.stat().st_size]


@pytest.fixture
def node(tmp_path: Path, image: Path, address: str) -> Node:
    return Node(tmp_path, image, address)


def own(environment: Path) -> set[str]:
    """Packages that are in the environment's own folder."""
    return {info.name.removesuffix(".dist-info") for info in environment.glob("lib/*/site-packages/*.dist-info")}


def test_lock_is_installed_once_in_front_of_image(node: Node) -> None:
    node.project("plain", "base==2.0")
    first = node.trained()
    assert first["versions"] == {"plain": "1.0", "base": "2.0"}
    assert first["parent"] == ["uv", "run", "train.py"], "Ray starts workers with this"
    (environment,) = node.environments()
    assert first["prefix"] == str(environment)
    assert own(environment) == {"plain-1.0"}
    done = node.run("run", "train.py")
    assert "Installing" not in done.stderr
    assert json.loads(done.stdout) == first


def test_hooks_and_programs_of_image_run_in_environment(node: Node) -> None:
    node.project("plain")
    hook = "import os, mlplatform; print(os.environ['HOOK'])"
    assert node.run("run", "python", "-c", hook).stdout == "ran\n"
    assert node.run("run", "launch").stdout == f"{node.environments()[0]}\n"


@pytest.mark.parametrize("replaced", [False, True], ids=["own index", "other index"])
@pytest.mark.parametrize("choice", ["", "--extra more", "--all-extras --no-dev", "--only-group=dev"])
def test_versions_are_those_of_uv_itself(node: Node, choice: str, replaced: bool) -> None:
    optional = '[project.optional-dependencies]\nmore = ["extra"]\n[dependency-groups]\ndev = ["tool"]\n'
    node.project("plain", more=optional)
    found = node.trained(*choice.split(), **({"UV_DEFAULT_INDEX": node.address} if replaced else {}))
    plain = node.variables | {"UV_CACHE_DIR": str(node.root.with_name("plain")), "UV_FROZEN": "1"}
    command = [UV, "run", "--python", node.image / "bin/python", *choice.split(), "train.py"]
    done = subprocess.run(command, cwd=node.folder, env=plain, capture_output=True, text=True, check=True)
    # Packages of the image are behind those of the project.
    assert found["versions"] == {"base": "2.0", **json.loads(done.stdout)["versions"]}


def test_outdated_lock_is_used_unless_locked_is_asked_for(node: Node) -> None:
    node.project("plain")
    project = node.folder / "pyproject.toml"
    node.trained("--locked", UV_DEFAULT_INDEX=node.address)
    project.write_text(project.read_text().replace('["plain"]', '["plain", "tool"]'))
    assert node.trained("--frozen")["versions"] == node.trained()["versions"] == {"plain": "1.0", "base": "3.0"}
    done = node.run("run", "--locked", "train.py", UV_DEFAULT_INDEX=node.address)
    assert done.returncode
    assert "needs to be updated" in done.stderr


def test_other_index_replaces_addresses_of_lock(node: Node, index: Path) -> None:
    with served(index) as other:
        node.address = other
        node.project("plain", "extra")
    assert node.run("run", "train.py", UV_HTTP_RETRIES="0").returncode == 2
    assert not node.environments()
    with served(index) as third:
        assert node.trained(UV_DEFAULT_INDEX=third)["versions"] == {"plain": "1.0", "base": "3.0", "extra": "1.0"}


def test_changed_wheel_is_rejected_by_checksum_of_lock(node: Node) -> None:
    node.project("plain")
    lock, wheel = node.folder / "uv.lock", "plain-1.0-py3-none-any.whl"
    lock.write_text(lock.read_text().replace(f'{wheel}"', f'{wheel}", hash = "sha256:{"0" * 64}"'))
    for variables in ({}, {"UV_DEFAULT_INDEX": node.address}):
        done = node.run("run", "train.py", **variables)
        assert done.returncode, done.stdout
        assert "Hash mismatch" in done.stderr, done.stderr
    assert not node.environments()


def test_lock_that_cannot_be_installed_fails_with_uvs_sentence(node: Node) -> None:
    node.project("plain", "base")
    lock = node.folder / "uv.lock"
    lock.write_text(lock.read_text().replace("plain-1.0-py3", "plain-9.0-py3"))
    done = node.run("run", "train.py", UV_HTTP_RETRIES="0")
    assert done.returncode
    assert "Failed to" in done.stderr
    assert not list(node.root.glob("*/pyvenv.cfg"))


def test_project_in_src_is_importable_with_metadata_and_programs(node: Node) -> None:
    more = '[project.scripts]\nfit = "my_project.run:main"\n[build-system]\nrequires = ["none-such"]\n'
    code = (
        "import sys\nfrom importlib.metadata import version\ndef main(): print(version('my-project'), sys.argv[1:])\n"
    )
    node.project("plain", more=more, files={"src/my_project/__init__.py": "", "src/my_project/run.py": code})
    assert node.run("run", "fit", "--rate", "1").stdout == "0.5 ['--rate', '1']\n"
    (node.folder / "src/my_project/run.py").write_text("def main(): print('changed')\n")
    assert node.run("run", "fit").stdout == "changed\n"
    assert node.run("run", "-m", "my_project.run").returncode == 0
    assert len(node.environments()) == 1


def test_changed_package_of_project_is_installed_again(node: Node) -> None:
    about = '[project]\nname = "part"\nversion = "1"\n'
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {"part/pyproject.toml": about + build, "part/backend.py": BACKEND, "part/part.py": "N = 1\n"}
    node.project("part", more='[tool.uv.sources]\npart = { path = "part", editable = true }\n', files=files)
    show = ("run", "python", "-c", "import part; print(part.N)")
    done = node.run(*show)
    assert done.stdout == "1\n", done.stderr
    # Each package of files is unpacked into a folder of its own.
    node.folder = node.folder.rename(node.folder.with_name("changed"))
    (node.folder / "part/part.py").write_text("N = 2\n")
    assert node.run(*show).stdout == "2\n"
    assert len(node.environments()) == 2


def test_other_version_of_ray_is_refused_before_build(node: Node) -> None:
    node.project("plain", "ray==2.59.0")
    done = node.run("run", "train.py")
    assert done.returncode == 1
    assert "Ray's nodes have ray 2.60.0, but uv.lock has 2.59.0: write ray==2.60.0" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("ray", [True, False])
def test_missing_python_is_refused_with_ray_else_by_uv(node: Node, ray: bool) -> None:
    node.project("plain", *(["ray"] if ray else []))
    for file, text in (("pyproject.toml", '">=3.11"'), ("uv.lock", '">=3.11"')):
        path = node.folder / file
        path.write_text(path.read_text().replace(text, '">=3.99"'))
    done = node.run("run", "--frozen", "train.py", UV_PYTHON_DOWNLOADS="never")
    assert done.returncode
    ours = f"Ray's nodes have Python {PYTHON}, but the project has requires-python = '>=3.99': allow"
    assert (ours if ray else "No interpreter found for Python >=3.99") in done.stderr
    assert not node.environments()


@pytest.mark.parametrize("how", ["--python", ".python-version", "requires-python"])
def test_project_for_other_python_is_left_to_uv(node: Node, how: str) -> None:
    node.project("plain")
    if how == ".python-version":
        (node.folder / how).write_text("3.99\n")
    if how == "requires-python":  # uv locks only what some Python of this machine can use
        for file in (node.folder / "pyproject.toml", node.folder / "uv.lock"):
            file.write_text(file.read_text().replace(">=3.11", "==3.99.*"))
    done = node.run(
        "run", *(["--python", "3.99"] if how == "--python" else []), "train.py", UV_OFFLINE="1", PATH="/usr/bin:/bin"
    )
    assert done.returncode
    assert "No interpreter found for Python" in done.stderr, done.stderr
    assert not node.environments()


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--no-project", "python", "-V"],
        ["run", "script.py"],
        ["run", "--isolated", "python", "-V"],
        ["--version"],
    ],
)
def test_other_commands_are_left_to_uv(node: Node, arguments: list[str]) -> None:
    node.project("plain", files={"script.py": "# /// script\n# dependencies = []\n# ///\nprint('alone')\n"})
    done = node.run(*arguments, UV_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert not node.environments()


@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])])
def test_killed_build_is_repaired_by_next_job(node: Node, kills: int) -> None:
    node.project("plain", "base==2.0", "tool")
    for number in range(kills):
        process = node.start("run", "train.py")
        wait_for(lambda: list(node.root.glob("*/pyvenv.cfg")), "the build to begin")
        for lock in node.root.glob("*.lock"):
            lock.write_text("")  # another build that was killed, if an earlier one was completed
        with suppress(subprocess.TimeoutExpired):
            process.wait(number % 11 / 20)
        with suppress(ProcessLookupError):
            # With and without uv, which then continues.
            (os.killpg if number % 2 else os.kill)(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    assert node.trained()["versions"] == {"plain": "1.0", "base": "2.0", "tool": "1.0"}
    (environment,) = node.environments()
    assert own(environment) == {"plain-1.0", "tool-1.0"}


def test_jobs_build_same_environment_once(node: Node) -> None:
    node.project("plain", "tool")
    node.trained()
    (environment,) = node.environments()
    with environment.with_suffix(".lock").open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.truncate()
        processes = [node.start("run", "train.py") for _ in range(3)]
        first = [process.stderr.readline() for process in processes if process.stderr]
    assert first == ["Another job is installing the same packages: waiting for it.\n"] * 3
    ended = [process.communicate(timeout=120) for process in processes]
    assert [json.loads(output)["versions"]["tool"] for output, _ in ended] == ["1.0"] * 3
    assert "".join(errors for _, errors in ended).count("Installing") == 1


def test_environments_unused_for_longest_leave_unless_in_use(node: Node) -> None:
    node.project("plain")
    held = node.start("run", "python", "-c", "print('started', flush=True); input()")
    assert held.stdout
    assert held.stdout.readline() == "started\n"
    (first,) = node.environments()
    node.project("tool")
    node.trained()
    second = node.environments()[-1]
    node.limit(0)
    node.project("extra")
    node.trained()
    assert second not in node.environments()
    assert not second.exists()
    assert (first / "bin/python").exists(), "a job runs in it"
    held.communicate("\n", timeout=60)
    environments.evict(node.root, 0)
    assert not first.exists()


def test_unlinked_downloads_are_removed_and_return(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_DOWNLOAD_SECONDS", -1.0)
    node.project("plain", "base==2.0")
    node.trained()
    unpacked = [file.parents[1] for file in node.root.glob("cache/uv/archive-*/*/*.dist-info/METADATA")]
    assert unpacked
    environments.evict(node.root, 0)
    assert not node.environments()
    assert not [folder for folder in unpacked if folder.exists()]
    assert node.trained()["versions"] == {"plain": "1.0", "base": "2.0"}


IN_FRONT = """\
import subprocess, sys
from pathlib import Path
from mlplatform import overlay
overlay.create(Path(sys.argv[1]))
with overlay.known_to_uv(Path(sys.argv[1])):
    sys.exit(subprocess.call(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    "wanted",
    ["plain", "base", "base<2", "extra tool", "plain base!=2.0", "--upgrade plain", "client", "--no-deps extra",
     "--reinstall-package base plain", "extra base<3", "plain none-such"],
)  # fmt: skip
def test_uv_installs_list_as_it_would_in_image(node: Node, tmp_path: Path, wanted: str) -> None:
    install = [str(UV), "pip", "install", "--default-index", node.address, *wanted.split(), "--python"]
    environment = tmp_path / "environment"
    begin = [node.image / "bin/python", "-I", "-c", IN_FRONT, environment]
    options = {"env": node.variables, "capture_output": True, "text": True, "check": False}
    plan = subprocess.run([*install, str(node.image), "--dry-run"], **options)
    done = subprocess.run([*begin, *install, str(environment)], **options)
    assert done.returncode == plan.returncode
    added = {line[3:].replace("==", "-") for line in plan.stderr.splitlines() if line.startswith(" + ")}
    kept = {line[3:].replace("==", "-") for line in plan.stderr.splitlines() if line.startswith(" ~ ")}
    assert own(environment) == added | kept
    if plan.returncode:
        assert "No solution found" in done.stderr
        assert done.stderr.splitlines()[1:] == plan.stderr.splitlines()[1:]


def test_twenty_locks_take_little_more_disk_than_their_packages(tmp_path: Path, image: Path) -> None:
    names = [f"big{number}" for number in range(15)]
    for name in names:
        wheel(tmp_path / "index", name, "1.0", files={f"{name}.py": f"# {secrets.token_hex(_BIG // 2)}\n"})
    with served(tmp_path / "index") as address:
        node = Node(tmp_path, image, address)
        for number in range(20):
            node.project(*(names[(number + more) % len(names)] for more in range(5 + number % 8)))
            node.trained()
    assert len(node.environments()) == 20
    assert environments._size(node.root) <= 1.3 * len(names) * _BIG
