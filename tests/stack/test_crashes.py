"""Each long-running container is killed, and is healthy again within two minutes; a training loses nothing by it.

`test_lifecycle.py` also restarts Docker, which stops all of them at once.
"""

from __future__ import annotations

import pytest
from failure_training import after_a_checkpoint, crash_until_healthy, nothing_is_lost, submit, whole_again
from host import Stack

from mlplatform.client.jobs import Jobs

UNUSED = {"alertmanager", "grafana", "notebook", "postgres-exporter", "prometheus"}
"""Services that no training uses."""


@pytest.mark.timeout(3600)
@pytest.mark.nightly
def test_training_survives_crash_of_each_service_it_uses(stack: Stack, jobs: Jobs) -> None:
    services = sorted(stack.running().keys() - UNUSED)
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
def test_other_services_are_healthy_again_after_crash(stack: Stack) -> None:
    for service in sorted(UNUSED & stack.running().keys()):
        crash_until_healthy(stack, service)
    whole_again(stack)
