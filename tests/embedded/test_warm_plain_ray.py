"""Warm start on a plain Ray cluster, in an environment that has mlplatform-warm and no other package of ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from embedded import completed
from waiting import wait_for

from mlplatform.local.processes import free_ports

WARM = Path(__file__).parents[2] / "platform" / "warm"

PROGRAM = """
import sys
modules = {"torch", "mlplatform"} & sys.modules.keys()
import ray
ray.init(address="auto", log_to_driver=False)
print("driver", *modules, "worker", *ray.get(ray.remote(lambda: {"torch", "mlplatform"} & sys.modules.keys()).remote()))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with Ray, torch and the wheel of mlplatform-warm."""
    folder = tmp_path_factory.mktemp("plain")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if "mlplatform" not in package.name and not (site / package.name).exists():
            (site / package.name).symlink_to(package)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", site, WARM], check=True)
    return folder / "bin" / "python"


def test_programs_and_workers_start_warm_without_our_other_packages(python: Path, tmp_path: Path) -> None:
    assert subprocess.run([python, "-c", "import mlplatform"], capture_output=True, check=False).returncode
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLPLATFORM_"))}
    environment |= {"RAY_START_HOOK": "mlplatform_warm.ray.node.prepare", "RAY_USAGE_STATS_ENABLED": "0"}
    ray, dashboard = Path(f"/tmp/ray-plain-{os.getpid()}"), free_ports(1)[0]
    start = ["-m", "ray.scripts.scripts", "start", "--head", "--block", "--port=0", "--num-cpus=2", f"--temp-dir={ray}"]
    with (tmp_path / "ray.log").open("wb") as log:
        head = subprocess.Popen(
            [python, *start, "--node-ip-address=127.0.0.1", f"--dashboard-port={dashboard}"],
            cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    folder = ray / f"warm-{os.getuid()}"
    try:
        wait_for(lambda: (folder / "driver.sock").exists(), "the templates to be loaded", 180)
        submit = ["-m", "ray.scripts.scripts", "job", "submit", f"--address=http://127.0.0.1:{dashboard}"]
        program = (f"--working-dir={tmp_path}", "--", "python", "program.py")
        done = completed(python, *submit, *program, cwd=tmp_path, env=environment, timeout=180)
        starts = [json.loads(line) for line in (folder / "starts.jsonl").read_text().splitlines()]
    finally:
        head.send_signal(signal.SIGTERM)
        head.wait(60)
    assert "driver torch worker torch" in done.stdout, done.stdout + done.stderr
    assert {"driver"} < {start["template"].partition("-")[0] for start in starts}
    assert {start["cold"] for start in starts} == {None}, starts
