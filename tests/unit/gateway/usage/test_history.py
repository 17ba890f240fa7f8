"""Decayed use, read from the ledger."""

from datetime import datetime, timedelta

import pytest
from held import Clock, measure
from sqlalchemy import update
from sqlalchemy.orm import Session
from stored import LOST, begin, do, end, submitted

from mlplatform_gateway.jobs.store import JobStore, now
from mlplatform_gateway.queue.planner.queue import Usage
from mlplatform_gateway.usage.history import UsageHistory
from mlplatform_gateway.usage.ledger import HALF_LIFE_SECONDS
from mlplatform_gateway.usage.schema import UsageRow

HOUR = timedelta(hours=1)
NOBODY = "shared token"


def hold(
    store: JobStore, job_id: str, ago: timedelta, person: str | None = None, borrowed: bool = False, lost: bool = False
) -> None:
    """Store an attempt that held a GPU for an hour, until some time ago."""
    job = submitted(submission_id=job_id, entrypoint_num_gpus=1)
    job.person, job.team = person, "vision" if person else None
    do(store.add(job))
    assert do(store.begin_attempt(job_id, borrowed))
    if lost:
        assert end(store, LOST, job_id)
    until = int((now() - ago).timestamp() * 1000)
    began = until - int(HOUR.total_seconds() * 1000)
    times = {"began": began, "measured": began, "ended": until}
    with Session(store.engine) as session, session.begin():
        session.execute(update(UsageRow).where(UsageRow.job_id == job_id).values(times))


def run(store: JobStore, person: str | None = None, borrowed: bool = False, gpus: int = 1) -> int:
    """Begin the job `mine`, which borrows for team vision or not; return its number."""
    job = submitted(submission_id="mine", entrypoint_num_gpus=gpus)
    job.person, job.team = person, "vision"
    do(store.add(job))
    assert do(store.begin_attempt("mine", borrowed))
    return job.sequence


def read(store: JobStore, at: datetime | None = None) -> Usage:
    return do(UsageHistory(store.engine).read(at or now()))


def test_use_halves_with_its_age(store: JobStore) -> None:
    hold(store, "recent", timedelta(), "alice")
    hold(store, "old", timedelta(seconds=HALF_LIFE_SECONDS), "bob")
    persons = read(store).persons
    assert persons["alice"] == pytest.approx(3600, rel=0.01)
    assert persons["bob"] == pytest.approx(persons["alice"] / 2, rel=0.001)


def test_running_job_counts_until_now(store: JobStore) -> None:
    run(store, "alice", gpus=2)
    assert read(store, now() + HOUR).persons["alice"] == pytest.approx(7200, rel=0.01)


def test_only_borrowed_use_counts_for_team(store: JobStore) -> None:
    hold(store, "own", timedelta(), "alice")
    assert read(store).borrowed == {}
    hold(store, "borrowed", timedelta(), "alice", borrowed=True)
    assert read(store).borrowed == {"vision": pytest.approx(3600, rel=0.01)}


def test_borrowed_use_is_dated_by_its_measurements(store: JobStore, clock: Clock) -> None:
    """It halves with its age, also while the job continues within its team's share."""
    number = run(store, borrowed=True)
    measure(store, number, clock.forward(3600), excess_gpus=1, borrowed=False)
    assert read(store, clock.time).borrowed == {"vision": pytest.approx(7200, rel=0.01)}
    clock.forward(HALF_LIFE_SECONDS)
    assert read(store, clock.time).borrowed == {"vision": pytest.approx(3600, rel=0.01)}
    measure(store, number, clock.time)
    assert read(store, clock.time).borrowed == {"vision": pytest.approx(3600, rel=0.01)}


def test_measured_excess_counts_for_its_owner(store: JobStore, clock: Clock) -> None:
    measure(store, run(store, "alice"), clock.forward(3600), excess_gpus=2)
    assert read(store, clock.time).persons["alice"] == pytest.approx(3 * 3600, rel=0.01)


def test_most_that_was_held_outlives_the_attempt(store: JobStore, clock: Clock) -> None:
    job = submitted(submission_id="mine", entrypoint_num_gpus=1, entrypoint_num_cpus=2)
    do(store.add(job))
    begin(store)
    history = UsageHistory(store.engine)
    assert do(history.most_held(job.sequence, 1)) == (1, 2)
    for gpus, cpus in ((1, 3), (1, 4), (0, 9)):
        measure(store, job.sequence, clock.forward(15), excess_gpus=gpus, excess_cpus=cpus)
    assert end(store, LOST)
    assert do(history.most_held(job.sequence, 1)) == (2, 6)
    assert do(history.most_held(job.sequence, 2)) == (0, 0)


def test_jobs_without_owner_are_summed_and_lost_ones_free(store: JobStore) -> None:
    hold(store, "one", timedelta())
    hold(store, "two", timedelta())
    hold(store, "lost", timedelta(), lost=True)
    assert read(store).persons == {NOBODY: pytest.approx(7200, rel=0.01)}
