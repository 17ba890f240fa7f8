"""Reports of the ledger: groups, clipping to the window, continuation, and totals that never decrease."""

from collections.abc import Sequence
from typing import Any

import pytest
from held import Clock, at, measure
from sqlalchemy import Row
from stored import LOST, SUCCEEDED, begin, do, end, ray, submitted

from mlplatform.api.usage import By
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.usage.report import UsageReader


def add(store: JobStore, job_id: str, gpus: float, person: str | None = None, team: str | None = None) -> int:
    """Store a job of user `eve` with an attempt that begins now; return its sequence number."""
    request = {"entrypoint_num_gpus": gpus, "entrypoint_num_cpus": 1}
    job = submitted(submission_id=job_id, metadata={"user": "eve"}, **request)
    job.person, job.team = person, team
    do(store.add(job))
    begin(store, job_id)
    return job.sequence


def read(store: JobStore, by: By, since: float, until: float) -> Sequence[Row[Any]]:
    return do(UsageReader(store.engine).read(by, at(since), at(until)))


@pytest.mark.parametrize(
    ("since", "until", "seconds"),
    [(-10, 0, 0), (-10, 1, 1), (0, 10, 10), (3.5, 8, 4.5), (9, 50, 1), (10, 50, 0), (8, 3, 0), (-5, 50, 10)],
)
def test_rows_are_clipped_to_the_window(
    since: float, until: float, seconds: float, store: JobStore, clock: Clock
) -> None:
    add(store, "mine", 2)
    clock.forward(10)
    end(store, SUCCEEDED)
    found = read(store, By.PERSON, since, until)
    assert [(use.gpu_seconds, use.cpu_seconds) for use in found] == ([(2 * seconds, seconds)] if seconds else [])


def test_running_attempt_counts_until_the_end_of_the_window(store: JobStore, clock: Clock) -> None:
    add(store, "mine", 1)
    clock.forward(100)
    assert [(use.gpu_seconds, use.running) for use in read(store, By.PERSON, 40, 100)] == [(60, 1)]


def test_people_have_their_account_or_the_user_of_the_job(store: JobStore, clock: Clock) -> None:
    for job_id, person, team in (("a", "ada", "audio"), ("b", "ada", "vision"), ("c", None, None)):
        add(store, job_id, 1, person, team)
    clock.forward(10)
    people = read(store, By.PERSON, 0, 10)
    assert [(use.person, use.jobs, use.gpu_seconds) for use in people] == [("ada", 2, 20), ("eve", 1, 10)]
    teams = {use.team: (use.jobs, use.gpu_seconds) for use in read(store, By.TEAM, 0, 10)}
    assert teams == {"audio": (1, 10), "vision": (1, 10), None: (1, 10)}


def test_jobs_with_the_same_id_are_apart(store: JobStore, clock: Clock) -> None:
    first = add(store, "mine", 1)
    clock.forward(10)
    end(store, SUCCEEDED)
    do(store.delete("mine"))
    second = add(store, "mine", 1)
    clock.forward(5)
    jobs = read(store, By.JOB, 0, 100)
    assert [(use.job, use.sequence, use.gpu_seconds) for use in jobs] == [("mine", first, 10), ("mine", second, 90)]


def test_excess_borrowed_and_lost_are_parts_of_the_sum(store: JobStore, clock: Clock) -> None:
    sequence = add(store, "mine", 2)
    measure(store, sequence, clock.forward(10), borrowed=True)
    measure(store, sequence, clock.forward(20), excess_gpus=1, excess_cpus=3, borrowed=False)
    clock.forward(40)
    end(store, LOST)
    (use,) = read(store, By.TEAM, 0, 100)
    assert use._asdict() == {
        **{"team": None, "jobs": 1, "running": 0},
        **{"gpu_seconds": 160, "cpu_seconds": 130, "lost_gpu_seconds": 160, "lost_cpu_seconds": 130},
        **{"borrowed_gpu_seconds": 60, "used_gpu_seconds": None},
    }


@pytest.mark.parametrize(
    ("since", "until", "seconds"), [(0, 80, 140), (-5, 20, 60), (10, 20, 30), (60, 80, 20), (45, 70, 25)]
)
def test_excess_of_running_attempt_is_spread_over_the_measured_time(
    since: float, until: float, seconds: float, store: JobStore, clock: Clock
) -> None:
    sequence = add(store, "mine", 1)
    measure(store, sequence, clock.forward(30), excess_gpus=2)
    clock.forward(50)
    (use,) = read(store, By.PERSON, since, until)
    assert use.gpu_seconds == pytest.approx(seconds)


def test_totals_do_not_decrease_when_an_end_is_noticed_late(store: JobStore, clock: Clock) -> None:
    add(store, "mine", 2, "ada", "vision")
    clock.forward(100)
    reader = UsageReader(store.engine)
    before = do(reader.totals(clock.time))
    details = {**ray("FAILED"), "end_time": round(at(30).timestamp() * 1000)}
    do(store.end_attempt("mine", 1, LOST, details, False))
    (total,) = do(reader.totals(clock.forward(100)))
    assert (total.person, total.team) == ("ada", "vision")
    assert [total.gpu_seconds] == [200] == [one.gpu_seconds for one in before]
    assert (total.lost_gpu_seconds, total.lost_cpu_seconds) == (200, 100)
    assert read(store, By.PERSON, 0, 200)[0].gpu_seconds == 60


def test_measured_use_is_clipped_in_proportion(store: JobStore, clock: Clock) -> None:
    sequence = add(store, "mine", 2)
    add(store, "unmeasured", 1, "ada")
    clock.forward(10)
    measure(store, sequence, clock.time, computing=0.8)
    end(store, SUCCEEDED)
    used = {(since, until): read(store, By.PERSON, since, until) for since, until in ((0, 100), (5, 100))}
    assert [{use.person: use.used_gpu_seconds for use in uses} for uses in used.values()] == [
        {"ada": None, "eve": 8.0},
        {"ada": None, "eve": 4.0},
    ]
