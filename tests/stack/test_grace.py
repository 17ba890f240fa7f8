"""Scripts without any part of the platform that are asked to leave: SIGTERM, then the promised time."""

from __future__ import annotations

import re

import pytest
from host import GRACE_S, SCRIPTS, wait_for
from persons import Person, submit

from mlplatform.client.jobs import Jobs

SAVING_S = GRACE_S - 3
LATE_S = 5.0
"""Time after the deadline within which a script is killed: Ray's supervisor counts from the SIGTERM, which comes later
than the notice."""


@pytest.mark.nightly
@pytest.mark.usefixtures("owning_team")
def test_plain_scripts_get_the_promised_grace(people: dict[str, Person], jobs: Jobs, started: list[str]) -> None:
    alice, bob = people["alice"], people["bob"]
    for reaction in ("ignore", "save"):
        command = ("python", "asked_to_leave.py", reaction, str(SAVING_S))
        started.append(submit(bob, *command, gpus=1, folder=SCRIPTS))
    stays, saves = started
    wait_for(lambda: all("Ready" in jobs.logs(job_id) for job_id in (stays, saves)), "both scripts")
    owed = submit(alice, "sleep", "1000", workers="2", worker_gpus="1", worker_cpus="0")
    started.append(owed)
    wait_for(lambda: jobs.get(owed).status == "RUNNING", "the job within its team's share", GRACE_S + 60)
    # The attempts end later than they free the GPUs, as the rest of their logs is awaited.
    wait_for(lambda: all(jobs.attempts(job_id)[0].ended for job_id in (stays, saves)), "the end of the attempts")
    # While alice's job runs: their next attempts would add lines.
    left = {job_id: jobs.attempts(job_id)[0] for job_id in (stays, saves)}
    logs = {job_id: jobs.logs(job_id) for job_id in left}
    assert [attempt.outcome for attempt in left.values()] == ["PREEMPTED", "PREEMPTED"]
    assert all(owed in (attempt.reason or "") for attempt in left.values())
    here = {job_id: [float(found) for found in re.findall(r"Here at ([\d.]+)", log)] for job_id, log in logs.items()}
    assert here[saves][-1] - here[saves][0] > SAVING_S - 1, logs[saves]
    assert "Saved: this is the last line" in logs[saves].splitlines(), logs[saves]
    deadline = left[stays].leave_by
    assert deadline is not None
    assert -2 < here[stays][-1] - deadline.timestamp() < LATE_S, (deadline, logs[stays])
    assert "Saved" not in logs[stays]
