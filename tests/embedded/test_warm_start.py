"""Warm start on the embedded platform: drivers and workers of Ray are forked from templates."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest
from embedded import instance_of, succeeded
from package_index import served, wheel
from waiting import wait_for

from mlplatform import contract
from mlplatform.client.jobs import Jobs
from mlplatform.local.platform import LocalPlatform
from mlplatform.settings.job import Settings
from mlplatform_warm import client

pytestmark = pytest.mark.nightly

TASK = """
import ray
print("job", ray.get_runtime_context().get_job_id(), ray.get(ray.remote(lambda: "done").remote()))
"""


@dataclass
class WarmPlatform:
    """A platform with templates, and the folder of their sockets."""

    settings: Settings
    folder: Path

    def starts(self, pattern: str) -> list[str | None]:
        """Return, for each start from a template whose name begins so, the reason for cold; None for warm."""
        log = self.folder / "starts.jsonl"
        lines = [json.loads(line) for line in (log.read_text() if log.exists() else "").splitlines()]
        return [line["cold"] for line in lines if line["template"].startswith(pattern)]

    def templates(self) -> set[str]:
        """Return the names of the templates that run."""
        return {path.stem for path in self.folder.glob("*.sock")}


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPlatform]:
    """A platform of its own, whose templates have been loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(client.SWITCH, "1")
        platform = LocalPlatform(tmp_path_factory.mktemp("warm"))
        settings = platform.up()
    try:
        folder = Path(instance_of(platform).ray_folder) / "warm"
        wait_for(lambda: (folder / "driver.sock").exists(), "the templates to be loaded")
        yield WarmPlatform(settings, folder)
    finally:
        platform.down()


OWN_TASK = """
import added, ray, sys
print("driver in", sys.prefix)
print("task in", ray.get(ray.remote(lambda: __import__("added") and __import__("sys").prefix).remote()))
"""


def run_task(warm: WarmPlatform, folder: Path) -> str:
    """Run a job with a task; return its ID in Ray, which the names of its templates contain."""
    (folder / "task.py").write_text(TASK)
    with Jobs(warm.settings) as jobs:
        log = succeeded(jobs, jobs.submit(["python", "task.py"], folder))
    return re.findall(r"^job (\w+) done$", log, re.MULTILINE)[0]


def test_template_ends_with_its_job_while_next_is_ready(warm: WarmPlatform, tmp_path: Path) -> None:
    job = run_task(warm, tmp_path)
    wait_for(lambda: not any(job in name for name in warm.templates()), "the template of the job to end", 30)
    following = (int.from_bytes(bytes.fromhex(job), "little") + 1).to_bytes(4, "little").hex()
    wait_for(lambda: any(following in name for name in warm.templates()), "the template of the next job", 30)
    before = len(warm.starts(f"job-{following}"))
    assert run_task(warm, tmp_path) == following
    started = warm.starts(f"job-{following}")[before:]
    assert started
    assert set(started) == {None}


def test_stopped_job_leaves_no_process(warm: WarmPlatform, tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text("import os, time; print('sleeping', os.getpid(), flush=True); time.sleep(600)")
    with Jobs(warm.settings) as jobs:
        job_id = jobs.submit(["python", "sleeper.py"], tmp_path)
        line = next(line for line in jobs.follow(job_id) if line.startswith("sleeping"))
        jobs.stop(job_id)
        wait_for(lambda: jobs.get(job_id).status == "STOPPED", "the job to stop")
    wait_for(lambda: not Path(f"/proc/{line.split()[1]}").exists(), "its driver to end", 10)


@pytest.mark.parametrize("kind", ["list", "lock"])
def test_job_with_added_packages_starts_warm(kind: str, warm: WarmPlatform, tmp_path: Path) -> None:
    index, folder = tmp_path / "index", tmp_path / "job"
    folder.mkdir()
    (folder / "task.py").write_text(OWN_TASK)
    wheel(index, "added", "1.0", files={"added.py": ""})
    wheel(index, "ray", version("ray"))
    with served(index) as address, Jobs(warm.settings) as jobs:
        command, listed = ["python", "task.py"], [f"--index-url={address}", "added"]
        if kind == "lock":
            command, listed = ["uv", "run", "task.py"], []
            needs = f'["added", "ray=={version("ray")}"]'
            declared = f'[project]\nname = "own"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = {needs}\n'
            (folder / "pyproject.toml").write_text(declared)
            uv = Path(sys.executable).with_name("uv")
            subprocess.run([uv, "lock", "--default-index", address], cwd=folder, check=True)
        before = len(warm.starts("job-"))
        log = succeeded(jobs, jobs.submit(command, folder, pip=listed), 180)
    driver, task = (re.findall(rf"^{who} in (.+)$", log, re.MULTILINE)[0] for who in ("driver", "task"))
    assert driver == task != sys.prefix
    assert contract.STARTED_WARM in log, (warm.folder / "starts.jsonl").read_text()
    assert set(warm.starts("job-")[before:]) == {None}
