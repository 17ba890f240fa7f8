"""Each long-running container is killed, under a training and idle, and is healthy again within two minutes.

CI draws three under a training; `test_lifecycle.py` and `test_losses.py` also kill all of them while nothing runs.
"""

from __future__ import annotations

import random

import pytest
from failure_training import after_a_checkpoint, crash_until_healthy, nothing_is_lost, submit, whole_again
from host import Stack

from mlplatform.client.jobs import Jobs

DRAWN = 3


def long_running(stack: Stack) -> list[str]:
    """Services whose containers run, which a new one joins without a change here."""
    label = "com.docker.compose.service"
    return sorted(entry["Config"]["Labels"][label] for entry in stack.containers() if entry["State"]["Running"])


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("drawn", [DRAWN, pytest.param(None, marks=pytest.mark.soak)], ids=["three", "all"])
@pytest.mark.costly("compose", "gateway/control")
def test_training_survives_crash_of_each_container(stack: Stack, jobs: Jobs, seed: str, drawn: int | None) -> None:
    services = long_running(stack)
    random.Random(seed).shuffle(services)  # noqa: S311 - containers
    services = services[:drawn]
    print(f"in this order: {', '.join(services)}", flush=True)
    # A step per second, for longer than the crashes take; those that remain are hurried.
    steps = 80 * len(services)
    job_id = submit(jobs, steps, 1)
    for service in services:
        after_a_checkpoint(jobs, job_id, more=2)
        crash_until_healthy(stack, service)
    after_a_checkpoint(jobs, job_id, more=1)
    nothing_is_lost(stack, jobs, job_id, steps)
    whole_again(stack)


@pytest.mark.soak("compose", "gateway/control")
def test_idle_containers_are_healthy_again_after_crash(stack: Stack) -> None:
    for service in long_running(stack):
        crash_until_healthy(stack, service)
        whole_again(stack)
