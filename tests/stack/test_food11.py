"""The tutorial's lessons on Food-11 with several workers: shared GPUs, and a job's own packages.

`test_gateway_load.py` tests a job that no node can run: it is rejected, or waits until a worker joins.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from gpu_jobs import seconds
from host import CHECKOUT, Stack

from mlplatform.api.jobs import Job
from mlplatform.client.jobs import Jobs

FOOD11 = CHECKOUT / "jobs/food11"
SMALL = ("--size=48", "--unfreeze-at=1", "--patience=1000")


@pytest.fixture
def lessons(stack: Stack, tmp_path: Path) -> Path:
    """The unchanged lessons; where workers only declare a GPU, with a `sitecustomize` that substitutes the CPU."""
    folder = shutil.copytree(FOOD11, tmp_path / "food11", ignore=shutil.ignore_patterns("__pycache__"))
    if stack.settings.accelerator == "cpu":
        shutil.copy(CHECKOUT / "tests/tutorial/cpu/sitecustomize.py", folder)
    return folder


def submit(jobs: Jobs, folder: Path, *arguments: str, script: str = "ray_food.py") -> str:
    return jobs.submit(["python", script, *SMALL, *arguments], folder, name="food11")


def ended(jobs: Jobs, job_ids: Sequence[str]) -> list[Job]:
    found = [jobs.wait(job_id, timeout_s=600) for job_id in job_ids]
    for job in found:
        assert job.status == "SUCCEEDED", jobs.logs(job.id)[-4000:]
    return found


def given(jobs: Jobs, job_id: str) -> list[dict[str, Any]]:
    """Resources that each worker of the job received; the lesson prints them."""
    (*_, line) = [line for line in jobs.logs(job_id).splitlines() if "Resources: " in line]
    return json.loads(line.partition("Resources: ")[2])


@pytest.mark.nightly
@pytest.mark.timeout(2400)
@pytest.mark.usefixtures("food11")
def test_concurrent_jobs_on_shared_gpus_beat_sequential_jobs(jobs: Jobs, lessons: Path) -> None:
    shutil.copy(CHECKOUT / "tests/scripts/slow_food.py", lessons)

    def start() -> str:
        shape = ("--epochs=8", "--gpus-per-worker=0.5", "--cpus-per-worker=1")
        return submit(jobs, lessons, *shape, script="slow_food.py")

    together = ended(jobs, [start() for _ in range(3)])
    alone = ended(jobs, [start()])

    for job in (*together, *alone):
        assert [worker["GPU"] for worker in given(jobs, job.id)] == [0.5]
    # Three halves on two GPUs: two of the jobs trained on the same GPU at the same time.
    nodes = [given(jobs, job.id)[0]["node"] for job in together]
    assert len(set(nodes)) < len(nodes)
    assert max(job.started for job in together if job.started) < min(job.ended for job in together if job.ended)

    at_once, in_turn = seconds(together), 3 * seconds(alone)
    print(f"\nthree jobs: {at_once:.0f} s at once, {in_turn:.0f} s one after another")
    assert at_once < in_turn


def with_packages(stack: Stack, runtime_env: str) -> tuple[str, float]:
    """Run the tutorial's command in the notebook; return its log and the seconds to the lesson's first line."""
    submitted = datetime.now(UTC).timestamp()
    typed = (
        f"cd /tmp/food11 && ray job submit --runtime-env {runtime_env} --working-dir . -- "
        f"env SUBMITTED={submitted} python own_packages.py"
    )
    log = stack.execute("notebook", "bash", "-c", typed, check=False).stdout
    found = re.search(r"Seconds from submission to the first line: ([\d.]+)", log)
    return log, float(found[1]) if found else float("nan")


def installed(stack: Stack, form: str) -> set[tuple[str, str]]:
    """Worker, and name and inode of each environment that Ray has made on it."""
    show = f"stat --format '%n %i' /tmp/ray/session_latest/runtime_resources/{form}/*/virtualenv 2>/dev/null || true"
    workers = ("ray-worker-0", "ray-worker-1")
    return {
        (worker, line) for worker in workers for line in stack.execute(worker, "sh", "-c", show).stdout.splitlines()
    }


@pytest.mark.nightly
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("form", ["pip", "uv"])
def test_second_job_reuses_installed_runtime_env_packages(stack: Stack, form: str) -> None:
    """Requires, as `pip` in the containers does, a package index that is reachable without further settings."""
    for file in (*FOOD11.glob("runtime*.json"), FOOD11 / "requirements.txt", FOOD11 / "own_packages.py"):
        stack.write("notebook", f"/tmp/food11/{file.name}", file.read_text())
    bad = {form: ["mlplatform-no-such-package==1"]}
    stack.write("notebook", "/tmp/food11/bad.json", json.dumps(bad))
    good = {"pip": "runtime.json", "uv": "runtime-uv.json"}[form]

    failed, _ = with_packages(stack, "bad.json")
    assert "mlplatform-no-such-package" in failed, failed[-3000:]
    assert "roman is installed" not in failed
    durations, copies = [], set()
    for _ in range(2):
        log, took = with_packages(stack, good)
        assert "roman is installed: 11 classes of food are XI" in log, log[-3000:]
        durations.append(took)
        copies |= installed(stack, form)
    print(f"\n{form}: first line after {', '.join(f'{took:.0f} s' for took in durations)}")
    # Each worker has environments of its own; a folder that is made again has another number.
    assert 1 <= len(copies) <= 2, copies
