"""A gateway that is killed at any moment: nothing that follows a time or the end of a job is doubled or forgotten."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import killed_work
import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session, joinedload
from stored import add, database_in, do
from waiting import wait_for

from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.store import JobStore


@contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """A process that works until it is killed at the end."""
    command = [sys.executable, killed_work.__file__, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        yield
        assert process.poll() is None, "it ended by itself"
        process.kill()


def missed(store: JobStore, hours: int) -> datetime | None:
    """Let a time of schedule `mine` have been missed, and return it; None while the last one is still to be started."""
    if any(job.origin == "mine" and job.state == State.WAITING for job in do(store.open_jobs())):
        return None
    moment = datetime.now(UTC)
    due = moment - timedelta(hours=hours)
    with Session(store.engine) as session, session.begin():
        later = update(JobRow).where(JobRow.id == "mine", JobRow.due > moment)
        return due if session.connection().execute(later.values(due=due)).rowcount else None


def is_done(store: JobStore) -> bool:
    due = do(store.get("mine")).due
    return due is not None and due > datetime.now(UTC) and do(store.open_jobs()) == []


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=pytest.mark.nightly)])
def test_killed_gateway_neither_doubles_nor_forgets_jobs(kills: int, tmp_path: Path) -> None:
    rng = random.Random(kills)  # noqa: S311 - moments
    store = JobStore(database_in(tmp_path))
    add(store, "mine", **{"mlplatform.schedule": "0 * * * *"})
    times = []
    for number in range(kills):
        times += [due] if (due := missed(store, number + 2)) else []
        add(store, f"first-{number}")
        add(store, f"then-{number}", **{"mlplatform.after": f"first-{number}"})
        with at_work(tmp_path):
            time.sleep(rng.uniform(0, 0.2))
    with at_work(tmp_path):
        wait_for(lambda: is_done(store), "the rest of the jobs to end")
    with Session(store.engine) as session:
        jobs = session.scalars(select(JobRow).where(JobRow.id != "mine").options(joinedload(JobRow.attempts))).unique()
        found = {job.id: job for job in jobs}
    assert {job.state for job in found.values()} == {State.SUCCEEDED}
    assert {len(job.attempts) for job in found.values()} == {1}
    submitted = [job for job in found.values() if job.origin == "mine"]
    assert sorted(job.due for job in submitted if job.due) == sorted(times)
    assert all(job.late for job in submitted)
    for number in range(kills):
        ended = found[f"first-{number}"].attempts[0].ended
        assert ended
        assert found[f"then-{number}"].attempts[0].created >= ended
