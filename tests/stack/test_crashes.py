"""Each long-running container is killed, under a training and idle, and is healthy again within two minutes.

CI draws three under a training; `test_lifecycle.py` and `test_losses.py` also kill all of them while nothing runs.
"""

from __future__ import annotations

import random
import time

import pytest
from failure_training import after_a_checkpoint, crash, nothing_is_lost, submit, whole_again
from figures import count
from host import Stack, wait_for

from mlplatform.client.jobs import Jobs

HEALTHY_SECONDS = 120
DRAWN = 3


def long_running(stack: Stack) -> list[str]:
    """Services whose containers run, which a new one joins without a change here."""
    label = "com.docker.compose.service"
    return sorted(entry["Config"]["Labels"][label] for entry in stack.containers() if entry["State"]["Running"])


def state(stack: Stack, service: str) -> tuple[str, str]:
    """Start time and health of a service's container."""
    (entry,) = [entry for entry in stack.containers() if entry["Name"] == f"/{stack.container(service)}"]
    return entry["State"]["StartedAt"], entry["State"]["Health"]["Status"]


def crash_until_healthy(stack: Stack, service: str) -> None:
    """Kill a service's container, and wait until the one that follows is healthy; prints the seconds."""
    before, begun = state(stack, service)[0], time.monotonic()
    crash(stack, service)

    def healthy() -> bool:
        started, health = state(stack, service)
        return started != before and health == "healthy"

    wait_for(healthy, f"{service} to be healthy again", HEALTHY_SECONDS)
    seconds = round(time.monotonic() - begun)
    print(f"{service} crashed: healthy after {seconds} s", flush=True)
    count("crashes of containers")
    count("seconds until crashed containers were healthy, in total", seconds)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("drawn", [DRAWN, pytest.param(None, marks=pytest.mark.soak)], ids=["three", "all"])
@pytest.mark.costly("compose", "gateway/control")
def test_training_survives_crash_of_each_container(stack: Stack, jobs: Jobs, drawn: int | None) -> None:
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)  # noqa: S311 - containers
    services = long_running(stack)
    rng.shuffle(services)
    services = services[:drawn]
    print(f"\nseed {seed}: {', '.join(services)}", flush=True)
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
