"""Packages of a job, installed in front of those of its node, from an index on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from embedded import succeeded
from package_index import served, wheel

from mlplatform.client.jobs import Jobs
from mlplatform.settings.environment import environment
from mlplatform.settings.job import Settings

SCRIPT = """
import sys
import ours, ray
def there():
    import mlplatform, ours, sys
    return f"{ours.GREETING} {sys.prefix}"
print("driver", there(), flush=True)
print("worker", ray.get(ray.remote(there).remote()), flush=True)
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    index = tmp_path_factory.mktemp("index")
    wheel(index, "ours", "1.0", "ray", files={"ours.py": "GREETING = 'installed for this job'\n"})
    wheel(index, "ray", version("ray"))
    with served(index) as address:
        yield address


def submit(reached: Settings, folder: Path, job_id: str, *command: str, **runtime_env: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    start = (Path(sys.executable).parent / "ray", "job", "submit", "--no-wait", "--submission-id", job_id)
    options = ("--working-dir", folder, "--runtime-env-json", json.dumps(runtime_env), "--", *command)
    subprocess.run([*start, *options], env=environment() | reached.environment(), check=True)


def prefixes(log: str) -> dict[str, str]:
    """Environments of the driver and of its worker."""
    words = [line.split(" ") for line in log.splitlines() if "installed for this job" in line]
    return {word[0]: word[-1] for word in words}


@pytest.mark.parametrize("kind", ["pip", "uv"])
def test_jobs_share_environment_of_list(reached: Settings, tmp_path: Path, address: str, kind: str) -> None:
    packages, found = [f"--index-url={address}", "ours"], []
    with Jobs(reached) as jobs:
        for number in (1, 2):
            submit(reached, tmp_path / "job", f"{kind}-{number}", "python", "train.py", **{kind: packages})
            found.append(prefixes(succeeded(jobs, f"{kind}-{number}", 120)))
    assert found[0] == found[1]
    assert found[0].keys() == {"driver", "worker"}
    assert all(f"/runtime_resources/{kind}/" in prefix for prefix in found[0].values())


@pytest.mark.parametrize("kind", ["pip", "uv"])
def test_unresolvable_list_fails_job_within_half_minute(
    reached: Settings, tmp_path: Path, address: str, kind: str
) -> None:
    began = time.monotonic()
    submit(
        reached, tmp_path / "job", f"bad-{kind}", "python", "train.py", **{kind: [f"--index-url={address}", "ours==7"]}
    )
    with Jobs(reached) as jobs:
        job = jobs.wait(f"bad-{kind}", 120)
        assert time.monotonic() - began < 30
        assert job.status == "FAILED"
        assert "ours==7" in jobs.logs(job.id)


def test_workers_of_uv_run_share_environment_of_driver(reached: Settings, tmp_path: Path, address: str) -> None:
    project = tmp_path / "job"
    project.mkdir()
    needs = json.dumps(["ours", f"ray=={version('ray')}"])
    declared = f'[project]\nname = "own"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = {needs}\n'
    (project / "pyproject.toml").write_text(declared)
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "lock", "--default-index", address], cwd=project, env={**os.environ}, check=True)
    with Jobs(reached) as jobs:
        submit(reached, project, "uv-run", "uv", "run", "train.py")
        found = prefixes(succeeded(jobs, "uv-run", 240))
    assert found["driver"] == found["worker"]
    assert "/environments/" in found["driver"]
