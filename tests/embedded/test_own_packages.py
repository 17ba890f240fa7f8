"""A job's own package: Ray installs a wheel of ours without a network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from embedded import succeeded
from package_index import wheel

from mlplatform.client.jobs import Jobs
from mlplatform.settings.environment import environment
from mlplatform.settings.job import Settings

SCRIPT = """
import sys
import ours, ray
print(ours.GREETING, sys.prefix, flush=True)
print(ray.get(ray.remote(lambda: __import__("ours").GREETING).remote()), flush=True)
"""


@pytest.mark.nightly
def test_job_installs_wheel_without_network(reached: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    wheel(tmp_path, "ours", "1.0", files={"ours.py": "GREETING = 'installed for this job'\n"})
    # Most of the time, Ray copies this platform's environment, 7 GB.
    packages = [str(tmp_path / "ours/ours-1.0-py3-none-any.whl")]
    pip = {"packages": packages, "pip_install_options": ["--no-index", "--no-deps"]}
    command = (Path(sys.executable).parent / "ray", "job", "submit", "--no-wait", "--submission-id", "own-package")
    options = ("--working-dir", folder, "--runtime-env-json", json.dumps({"pip": pip}), "--", "python", "train.py")
    subprocess.run([*command, *options], env=environment() | reached.environment(), check=True)
    with Jobs(reached) as jobs:
        log = succeeded(jobs, "own-package", 400)
        assert log.count("installed for this job") == 2, "the driver and its task"
        assert "/runtime_resources/pip/" in log
