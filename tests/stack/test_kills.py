"""Templates, workers, supervisors, raylets and containers are killed at random moments of a training."""

from __future__ import annotations

import random

import pytest
from failure_training import SCRIPTS, crash, nothing_is_lost, reports, whole_again
from host import Stack, wait_for

from mlplatform.client.jobs import Jobs

WORKERS = ("ray-worker-0", "ray-worker-1")
SOAK_JOBS, KILLS = 67, 3
"""Two hundred kills."""

STEPS = 200
CONTAINER = "container"
PROCESSES = {
    "template": "python -m mlplatform[.]warm /tmp/warm",
    "worker": "^ray::RayTrainWorker",
    "supervisor": "^ray::(JobSupervisor|_job_supervisor)",
    "raylet": "/raylet/raylet ",
}
"""Patterns of command lines."""

OF_JOBS = "^ray::(RayTrainWorker|TrainController|JobSupervisor|_job_supervisor)|^python steps[.]py"


def found(stack: Stack, service: str, pattern: str) -> list[str]:
    """The processes of a container whose command line matches."""
    return stack.execute(service, "pgrep", "--full", pattern, check=False).stdout.split()


def kill_one(stack: Stack, kind: str, rng: random.Random) -> None:
    """Kill one process of a kind on a random node, or the node's container; nothing if there is none."""
    service = rng.choice(WORKERS)
    if kind == CONTAINER:
        crash(stack, service)
    elif pids := found(stack, service, PROCESSES[kind]):
        stack.execute(service, "kill", "-KILL", rng.choice(pids), check=False)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SOAK_JOBS))
def test_training_survives_random_kills(stack: Stack, jobs: Jobs, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - reproducible
    job_id = jobs.submit(
        ["python", "steps.py", f"--steps={STEPS}", "--pause=0.5"],
        SCRIPTS,
        name=f"killed-{seed}",
        max_restarts_on_loss=KILLS,
    )
    for kind in rng.choices([*PROCESSES, CONTAINER], k=KILLS):
        more = len(reports(jobs, job_id)) + rng.randrange(1, 12)
        wait_for(lambda more=more: len(reports(jobs, job_id)) >= more, "further steps", 300)
        print(f"killing a {kind}")
        kill_one(stack, kind, rng)
    nothing_is_lost(stack, jobs, job_id, STEPS)
    whole_again(stack)
    wait_for(lambda: not any(found(stack, worker, OF_JOBS) for worker in WORKERS), "the job's processes to end", 10)
