"""Each long-running container is killed, under a training and idle, and is healthy again within two minutes.

`test_lifecycle.py` also restarts Docker, which stops all of them at once.
"""

from __future__ import annotations

import pytest
from failure_training import after_a_checkpoint, crash_until_healthy, nothing_is_lost, submit, whole_again
from host import Stack

from mlplatform.client.jobs import Jobs


def long_running(stack: Stack) -> list[str]:
    """Services whose containers run, which a new one joins without a change here."""
    label = "com.docker.compose.service"
    return sorted(entry["Config"]["Labels"][label] for entry in stack.containers() if entry["State"]["Running"])


@pytest.mark.timeout(3600)
@pytest.mark.nightly
def test_training_survives_crash_of_each_container(stack: Stack, jobs: Jobs) -> None:
    services = long_running(stack)
    # A step per second, for longer than the crashes take; those that remain are hurried.
    steps = 80 * len(services)
    job_id = submit(jobs, steps, 1)
    for service in services:
        after_a_checkpoint(jobs, job_id, more=2)
        crash_until_healthy(stack, service)
    after_a_checkpoint(jobs, job_id, more=1)
    nothing_is_lost(stack, jobs, job_id, steps)
    whole_again(stack)


@pytest.mark.nightly
def test_idle_containers_are_healthy_again_after_crash(stack: Stack) -> None:
    for service in long_running(stack):
        crash_until_healthy(stack, service)
        whole_again(stack)
