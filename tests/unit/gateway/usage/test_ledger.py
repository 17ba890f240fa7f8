"""Rows of the ledger: what an attempt reserves, from when until when, on which terms, and with which outcome."""

from __future__ import annotations

from datetime import datetime

import pytest
from held import Clock, Terms, at, rows
from sqlalchemy import event
from stored import FAILED, LOST, SUCCEEDED, add, begin, do, end, ray, submitted

from mlplatform.gateway.jobs.states import Outcome
from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.usage import ledger
from mlplatform.gateway.usage.ledger import Kind


def spans(store: JobStore) -> list[tuple[float, float | None]]:
    """Beginning and end of each row, in seconds after the beginning of the test."""
    zero = ledger.milliseconds(at(0))
    return [
        ((row.began - zero) / 1000, None if row.ended is None else (row.ended - zero) / 1000) for row in rows(store)
    ]


def finish(store: JobStore, end_time: datetime | None, died: datetime | None = None) -> None:
    """End the first attempt of `mine`, with the times that Ray gives."""
    details = {**ray("FAILED"), "end_time": None if end_time is None else int(end_time.timestamp() * 1000)}
    assert do(store.end_attempt("mine", 1, LOST, details, False, died))


def test_attempt_holds_entry_point_and_workers_until_its_end(store: JobStore, clock: Clock) -> None:
    metadata = {"workers": "3", "worker_cpus": "2", "worker_gpus": "0.5", "user": "ada"}
    do(store.add(submitted(submission_id="mine", entrypoint_num_cpus=1, entrypoint_num_gpus=1, metadata=metadata)))
    clock.forward(5)
    begin(store)
    assert spans(store) == [(5, None)]
    clock.forward(60)
    end(store, SUCCEEDED)
    (row,) = rows(store)
    assert (row.gpus / ledger.PARTS, row.cpus / ledger.PARTS) == (2.5, 7)
    assert (row.job_id, row.user, row.person, row.team) == ("mine", "ada", None, None)
    assert (row.kind, row.outcome, row.used_gpu_s) == ("share", "SUCCEEDED", None)
    assert spans(store) == [(5, 65)]


def test_account_and_team_are_those_of_the_job(store: JobStore) -> None:
    job = submitted(submission_id="mine", metadata={"user": "ada"})
    job.person, job.team = "ada", "vision"
    do(store.add(job))
    begin(store)
    (row,) = rows(store)
    assert (row.user, row.person, row.team) == ("ada", "ada", "vision")


def test_each_attempt_has_a_row_with_its_outcome(store: JobStore, clock: Clock) -> None:
    add(store)
    for number, verdict in ((1, LOST), (2, FAILED)):
        begin(store)
        clock.forward(10)
        end(store, verdict, number=number)
        clock.forward(1)
    assert [(row.attempt, row.n, row.outcome) for row in rows(store)] == [(1, 1, "LOST"), (2, 1, "FAILED")]
    assert spans(store) == [(0, 10), (11, 21)]


def test_refused_attempt_is_closed(store: JobStore, clock: Clock) -> None:
    add(store)
    begin(store)
    clock.forward(2)
    do(store.refuse("mine", 1, "Ray rejects the job."))
    do(store.refuse("mine", 1, "Again."))
    assert spans(store) == [(0, 2)]
    assert [row.outcome for row in rows(store)] == ["FAILED"]


def test_platform_loses_what_is_marked_lost() -> None:
    assert ledger.LOST == Outcome.LOST


@pytest.mark.parametrize(
    ("end_time", "died", "expected"),
    [
        (None, None, 100),
        (at(40.5), None, 40.5),
        (None, at(30), 30),
        (at(40), at(30), 30),
        (at(20), at(30), 20),
        (at(101), at(102), 100),
        (at(-1), None, 0),
    ],
    ids=["unknown", "Ray", "node", "node first", "Ray first", "clocks ahead", "clock behind"],
)
def test_end_is_the_earliest_known_time(
    end_time: datetime | None, died: datetime | None, expected: float, store: JobStore, clock: Clock
) -> None:
    add(store)
    begin(store)
    clock.forward(100)
    finish(store, end_time, died)
    assert spans(store) == [(0, expected)]
    (row,) = rows(store)
    assert row.recorded == ledger.milliseconds(at(100))


def test_repeated_end_changes_nothing(store: JobStore, clock: Clock) -> None:
    add(store)
    begin(store)
    clock.forward(10)
    end(store, SUCCEEDED)
    clock.forward(10)
    assert end(store, LOST) is None
    assert [(row.outcome, row.recorded) for row in rows(store)] == [("SUCCEEDED", ledger.milliseconds(at(10)))]


def test_changed_terms_continue_in_the_next_row(store: JobStore, clock: Clock) -> None:
    sequence, terms = add(store, workers="2", worker_gpus="1").sequence, Terms(store)
    begin(store)
    assert do(terms.change(sequence, 1, clock.forward(10), Kind.BORROWED))
    assert do(terms.change(sequence, 1, clock.forward(10), amounts={"GPU": 3, "CPU": 0.5, "memory": 7}))
    assert do(terms.change(sequence, 1, clock.forward(10), Kind.OVERTIME, {"GPU": 3}))
    clock.forward(10)
    end(store, SUCCEEDED)
    assert [(row.n, row.kind, row.gpus / ledger.PARTS, row.cpus / ledger.PARTS) for row in rows(store)] == [
        *((1, "share", 2, 2), (2, "borrowed", 2, 2), (3, "borrowed", 3, 0.5), (4, "overtime", 3, 0)),
    ]
    assert spans(store) == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert {row.outcome for row in rows(store)} == {"SUCCEEDED"}


def test_same_terms_change_nothing(store: JobStore, clock: Clock) -> None:
    sequence, terms = add(store, workers="2", worker_gpus="1").sequence, Terms(store)
    begin(store)
    assert not do(terms.change(sequence, 1, clock.forward(10), Kind.SHARE, {"GPU": 2, "CPU": 2}))
    assert spans(store) == [(0, None)]


def test_terms_of_ended_or_unknown_attempt_do_not_change(store: JobStore, clock: Clock) -> None:
    sequence, terms = add(store).sequence, Terms(store)
    assert not do(terms.change(sequence, 1, clock.time, Kind.BORROWED))
    begin(store)
    end(store, SUCCEEDED)
    assert not do(terms.change(sequence, 1, clock.forward(10), Kind.BORROWED))
    assert len(rows(store)) == 1


def test_row_after_the_end_becomes_empty(store: JobStore, clock: Clock) -> None:
    """The terms changed during an outage, before the gateway learned that the attempt had ended."""
    sequence, terms = add(store).sequence, Terms(store)
    begin(store)
    do(terms.change(sequence, 1, clock.forward(50), Kind.BORROWED))
    clock.forward(50)
    finish(store, at(30))
    assert spans(store) == [(0, 30), (50, 50)]


def test_deletion_of_a_job_keeps_its_rows(store: JobStore, clock: Clock) -> None:
    for _ in range(2):
        add(store)
        begin(store)
        clock.forward(10)
        end(store, SUCCEEDED)
        do(store.delete("mine"))
    assert [row.job_id for row in rows(store)] == ["mine", "mine"]
    assert len({row.job for row in rows(store)}) == 2
    assert spans(store) == [(0, 10), (10, 20)]


def test_attempt_and_row_are_stored_together(store: JobStore) -> None:
    add(store)

    def fail(*_: object) -> None:
        raise ConnectionError

    event.listen(store.engine, "commit", fail)
    with pytest.raises(ConnectionError):
        begin(store)
    event.remove(store.engine, "commit", fail)
    assert rows(store) == do(store.get("mine")).attempts == []
