"""Programs of a virtual environment in front of the template's packages: warm if it only adds to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from warm import PATIENCE_SECONDS, Warm, inherited, patient_client, running_template

from mlplatform import overlay
from mlplatform_warm import client
from mlplatform_warm.ray import node, setup_worker
from mlplatform_warm.variables import OF_DRIVERS

NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Otherwise the second run of a program would load what the first one has compiled."""

SHOW = """
import importlib.metadata, multiprocessing, os, site, subprocess, sys, sysconfig, added
if __name__ == "__main__":
    print(sys.argv, sys.path, sys.prefix, sys.exec_prefix, sys.base_prefix, sys.executable, sys.orig_argv)
    print(added.__file__, importlib.metadata.version("added"), site.getsitepackages(), sysconfig.get_path("purelib"))
    print(open("/proc/self/cmdline").read().split(chr(0)), os.environ["PATH"], os.environ["VIRTUAL_ENV"])
    print(subprocess.check_output([sys.executable, "-c", "import sys, added; print(sys.prefix, sys.path)"]))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(added.twice, [1, 2]))
"""


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """A template for all tests."""
    with running_template(tmp_path_factory.mktemp("warm") / "sockets", {**inherited(), **NO_BYTECODE}) as running:
        running.log.touch()
        yield running


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment with a package of its own."""
    folder = tmp_path / "environment"
    overlay.create(folder)
    packages = overlay.own_packages(folder)
    (packages / "added.py").write_text("def twice(value): return 2 * value\n")
    (packages / "added-1.5.dist-info").mkdir()
    (packages / "added-1.5.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.5\n")
    (packages / "added-1.5.dist-info/entry_points.txt").write_text("[console_scripts]\nadded = added:twice\n")
    node.write_python(folder / "bin")
    return folder


def activated(environment: Path, variables: Mapping[str, str]) -> dict[str, str]:
    path = f"{environment / 'bin'}:{variables['PATH']}"
    return {**variables, **NO_BYTECODE, "VIRTUAL_ENV": str(environment), "PATH": path}


def assert_same(warm: Warm, environment: Path, program: Path, cold: str | None) -> str:
    """Assert that a program has the same output warm and cold, and that it started as expected; return its output."""
    python, before = environment / "bin/python", len(warm.reasons())
    of_cold = activated(environment, {**inherited(), **OF_DRIVERS})
    expected = subprocess.run([python, program, "one"], env=of_cold, capture_output=True, text=True, check=False)
    patient = [warm.python, *patient_client(python, PATIENCE_SECONDS), str(program), "one"]
    variables = activated(environment, warm.environment())
    started = subprocess.run(patient, env=variables, capture_output=True, text=True, check=False)
    assert started.stdout == expected.stdout
    assert (started.returncode, started.stderr) == (expected.returncode, expected.stderr)
    # Those that the program starts have a line each, too.
    reason = warm.reasons()[before]
    assert (reason is None) if cold is None else (reason is not None and cold in reason), reason
    return started.stdout


def test_program_of_environment_behaves_the_same(warm: Warm, environment: Path, tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    printed = assert_same(warm, environment, tmp_path / "show.py", cold=None)
    assert "[2, 4]" in printed
    assert f"{environment}/bin/python" in printed


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("json.py", "", "comes before"),
        ("httpx/__init__.py", "", "comes before"),
        ("sitecustomize.py", "print('early')", "comes before"),
        ("hook.pth", "import added", "hook.pth is read"),
        ("outside.pth", "/usr/lib", "outside.pth is read"),
        ("plugin-1.dist-info/entry_points.txt", "[mlflow.tracking_store]\nx = added", "entry_points.txt is read"),
    ],
)
def test_environment_that_changes_imports_starts_cold(
    name: str, content: str, reason: str, warm: Warm, environment: Path, tmp_path: Path
) -> None:
    path = overlay.own_packages(environment) / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    (tmp_path / "program.py").write_text("import sys; print(sys.prefix)")
    assert str(environment) in assert_same(warm, environment, tmp_path / "program.py", cold=reason)


@pytest.mark.parametrize("variables", [{}, {"RAY_worker_niceness": "0"}], ids=["worker", "supervisor"])
def test_worker_of_environment_starts_without_shell(
    variables: dict[str, str], environment: Path, tmp_path: Path
) -> None:
    script = "import os, sys; print(sys.prefix, os.getcwd(), *map(os.environ.get, ['VIRTUAL_ENV', 'PATH', 'OLDPWD']))"
    (tmp_path / "worker.py").write_text(script)
    prefix = ["cd", str(tmp_path), "&&", "source", f"{environment}/bin/activate", "1>&2", "&&"]
    context = {"py_executable": f"{environment}/bin/python", "command_prefix": prefix, "env_vars": variables}
    words = [str(tmp_path / "worker.py"), "--language=PYTHON", f"{setup_worker.CONTEXT}{json.dumps(context)}"]
    (tmp_path / "bash").symlink_to("/bin/false")
    without_shell = {**inherited(), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    started = subprocess.check_output([sys.executable, setup_worker.__file__, *words], env=without_shell, text=True)
    # As a supervisor runs only Ray's code, it has the packages of the node.
    chosen = sys.executable if variables else environment / "bin/python"
    shell = f"cd {tmp_path} && source {environment}/bin/activate 1>&2 && exec {chosen} {words[0]}"
    assert started == subprocess.check_output(["/bin/bash", "-c", shell], env=without_shell, text=True)


def test_environment_with_other_python_keeps_it(environment: Path) -> None:
    (environment / "bin/python").unlink()
    (environment / "bin/python").symlink_to(sys.executable)
    assert client.prefix_of(f"{environment}/bin/python") == ""
    assert client.prefix_of("uv run --with ray python") == ""
