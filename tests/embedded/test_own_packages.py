"""A job's own package: Ray installs a wheel of ours, with pip and with uv, without a network."""

from __future__ import annotations

import zipfile
from pathlib import Path

from mlplatform.client.jobs import Jobs
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


def test_job_installs_wheel_without_network(reached: Settings, environment: Settings, tmp_path: Path) -> None:
    """Both forms at once: each copies the environment of this platform first, which takes most of the time."""
    from ray.job_submission import JobSubmissionClient

    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    file, client = wheel(tmp_path), JobSubmissionClient(reached.ray_address)
    options = {"pip": "pip_install_options", "uv": "uv_pip_install_options"}
    ids = {
        form: client.submit_job(
            entrypoint="python train.py",
            runtime_env={
                "working_dir": str(folder),
                form: {"packages": [str(file)], options[form]: ["--no-index", "--no-deps"]},
            },
        )
        for form in options
    }
    with Jobs(reached) as jobs:
        for form, job_id in ids.items():
            job = jobs.wait(job_id, timeout_s=400)
            log = jobs.logs(job_id)
            assert job.status == "SUCCEEDED", (form, job.message, log[-3000:])
            assert log.count("installed for this job") == 2, "the driver and its task"
            assert f"/runtime_resources/{form}/" in log
