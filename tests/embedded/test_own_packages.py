"""A job's own package: Ray installs a wheel of ours without a network."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from embedded import succeeded

from mlplatform.client.jobs import Jobs
from mlplatform.settings.environment import environment
from mlplatform.settings.job import Settings

SCRIPT = """
import sys
import ours, ray
print(ours.GREETING, sys.prefix, flush=True)
print(ray.get(ray.remote(lambda: __import__("ours").GREETING).remote()), flush=True)
"""


def wheel(folder: Path) -> Path:
    """Write a wheel with one module."""
    file, info = folder / "ours-1.0-py3-none-any.whl", "ours-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("ours.py", "GREETING = 'installed for this job'\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*archive.namelist(), f"{info}/RECORD"]))
    return file


@pytest.mark.nightly
def test_job_installs_wheel_without_network(reached: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    # Most of the time, Ray copies this platform's environment, 7 GB.
    pip = {"packages": [str(wheel(tmp_path))], "pip_install_options": ["--no-index", "--no-deps"]}
    command = (Path(sys.executable).parent / "ray", "job", "submit", "--no-wait", "--submission-id", "own-package")
    options = ("--working-dir", folder, "--runtime-env-json", json.dumps({"pip": pip}), "--", "python", "train.py")
    subprocess.run([*command, *options], env=environment() | reached.environment(), check=True)
    with Jobs(reached) as jobs:
        log = succeeded(jobs, "own-package", 400)
        assert log.count("installed for this job") == 2, "the driver and its task"
        assert "/runtime_resources/pip/" in log
