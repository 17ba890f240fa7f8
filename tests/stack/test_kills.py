"""Templates, clients, workers, supervisors, raylets and containers are killed at random moments of trainings."""

from __future__ import annotations

import random

import pytest
from failure_training import crash, nothing_is_lost, whole_again
from host import SCRIPTS, Stack, wait_for

from mlplatform.client.jobs import Jobs

WORKERS = ("ray-worker-0", "ray-worker-1")
EACH = 3
KILLS = 21

TRAININGS = 3
"""At once, so that most kills meet a training that still recovers from an earlier one."""

STEPS = 300
CONTAINER = "container"
PROCESSES = {
    "template": "python -m mlplatform_war[m] /tmp/warm",
    "client": "ray_setup_worker[.]py|python -IS /tmp/warm/bin/python",
    "worker": "^ray::RayTrainWorker",
    "supervisor": "^ray::(JobSupervisor|_job_supervisor)",
    "agent": "^ray::(RuntimeEnvAgent|DashboardAgent)",
    "raylet": "/raylet/raylet ",
}
"""Patterns of command lines."""

OF_JOBS = "^ray::(RayTrainWorker|TrainController|JobSupervisor|_job_supervisor)|^python steps[.]py"


def found(stack: Stack, service: str, pattern: str) -> list[str]:
    """The processes of a container whose command line matches."""
    return stack.execute(service, "pgrep", "--full", pattern, check=False).stdout.split()


def kill_one(stack: Stack, kind: str, rng: random.Random) -> bool:
    """Kill one process of a kind on a random node, or the node's container; return False if there is none."""
    service = rng.choice(WORKERS)
    if kind == CONTAINER:
        crash(stack, service)
        return True
    if pids := found(stack, service, PROCESSES[kind]):
        stack.execute(service, "kill", "-KILL", rng.choice(pids), check=False)
    return bool(pids)


def lines(jobs: Jobs, job_id: str) -> int:
    """Number of lines in a job's log: a restart logs some, each step at least one."""
    return len(jobs.logs(job_id).splitlines())


@pytest.mark.nightly
def test_trainings_survive_random_kills(stack: Stack, jobs: Jobs) -> None:
    rng = random.Random(0)  # noqa: S311 - reproducible
    command = ["python", "steps.py", f"--steps={STEPS}", "--pause=0.5", f"--max-failures={KILLS}"]
    started = [
        jobs.submit(
            command, SCRIPTS, name=f"killed-{number}", max_restarts_on_loss=KILLS, max_restarts_on_failure=KILLS
        )
        for number in range(TRAININGS)
    ]
    killed = set()
    for kind in rng.sample([*PROCESSES, CONTAINER] * EACH, k=KILLS):
        before, more = [lines(jobs, job_id) for job_id in started], rng.randrange(1, 12)
        wait_for(
            lambda before=before, more=more: any(
                lines(jobs, job_id) >= seen + more for job_id, seen in zip(started, before, strict=True)
            ),
            "any training to log a restart or a step",
            300,
        )
        print(f"killing a {kind}", flush=True)
        if kill_one(stack, kind, rng):
            killed.add(kind)
    # Otherwise a pattern fits no process anymore.
    assert killed >= {"template", "worker", "supervisor", "agent", "raylet"}, killed
    for job_id in started:
        nothing_is_lost(stack, jobs, job_id, STEPS)
        failed = [attempt for attempt in jobs.attempts(job_id) if attempt.outcome == "FAILED"]
        # The client of an entry point stands for the entry point: its death is that of the job's own process.
        assert all("exit code 137" in str(attempt.reason) for attempt in failed), failed
    whole_again(stack)
    wait_for(lambda: not any(found(stack, worker, OF_JOBS) for worker in WORKERS), "the jobs' processes to end", 10)
