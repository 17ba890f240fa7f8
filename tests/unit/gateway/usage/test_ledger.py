"""Rows of the ledger: what an attempt is granted, from when until when, with which outcome, and what is measured."""

from datetime import datetime

import pytest
from held import Clock, at, measure, rows
from sqlalchemy import event
from stored import FAILED, LOST, SUCCEEDED, add, begin, do, end, ray, submitted

from mlplatform_gateway.jobs.states import Outcome
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.usage import ledger


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
    job = submitted(submission_id="mine", entrypoint_num_cpus=1, entrypoint_num_gpus=1, metadata=metadata)
    job.person, job.team = "alice", "vision"
    do(store.add(job))
    clock.forward(5)
    begin(store)
    assert spans(store) == [(5, None)]
    clock.forward(60)
    end(store, SUCCEEDED)
    (row,) = rows(store)
    assert (row.gpus / ledger.PARTS, row.cpus / ledger.PARTS) == (2.5, 7)
    assert (row.job_id, row.user, row.person, row.team) == ("mine", "ada", "alice", "vision")
    assert (row.borrowed, row.outcome, row.used_gpu_s) == (False, "SUCCEEDED", None)
    assert spans(store) == [(5, 65)]


def test_each_attempt_has_a_row_with_its_outcome(store: JobStore, clock: Clock) -> None:
    add(store)
    for number, verdict in ((1, LOST), (2, FAILED)):
        begin(store)
        clock.forward(10)
        end(store, verdict, number=number)
        clock.forward(1)
    assert [(row.attempt, row.outcome) for row in rows(store)] == [(1, "LOST"), (2, "FAILED")]
    assert spans(store) == [(0, 10), (11, 21)]


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


def sums(store: JobStore) -> tuple[float, float, float, float | None]:
    """Excess in GPU- and CPU-seconds, borrowed GPU-seconds, and GPU-seconds that have computed, of the only row."""
    (row,) = rows(store)
    excess = row.excess_gpu, row.excess_cpu, row.borrowed_gpu
    return (*(amount / ledger.PARTS / 1000 for amount in excess), row.used_gpu_s)  # type: ignore[return-value]


def test_measurement_counts_back_to_the_one_before(store: JobStore, clock: Clock) -> None:
    sequence = add(store, workers="2", worker_gpus="1").sequence
    begin(store)
    measure(store, sequence, clock.forward(10), excess_gpus=1, excess_cpus=0.5, computing=1.5)
    measure(store, sequence, clock.forward(20))
    measure(store, sequence, clock.forward(5), excess_gpus=2, computing=2)
    assert sums(store) == (20, 5, 0, 25)
    clock.forward(10)
    end(store, SUCCEEDED)
    assert sums(store) == (20, 5, 0, 25), "nothing was measured since"
    assert spans(store) == [(0, 45)]


def test_borrowed_counts_from_the_beginning_until_it_is_not(store: JobStore, clock: Clock) -> None:
    sequence = add(store, workers="2", worker_gpus="1").sequence
    assert do(store.begin_attempt("mine", borrowed=True))
    measure(store, sequence, clock.forward(10), excess_gpus=1)
    measure(store, sequence, clock.forward(10), borrowed=False)
    measure(store, sequence, clock.forward(100), borrowed=True)
    clock.forward(5)
    end(store, SUCCEEDED)
    assert sums(store) == (10, 0, 3 * 10 + 2 * 10 + 2 * 5, None)


def test_measurement_of_earlier_time_changes_nothing(store: JobStore, clock: Clock) -> None:
    """The clock of the host was set back."""
    sequence = add(store).sequence
    begin(store)
    measure(store, sequence, clock.forward(10), excess_gpus=1)
    measure(store, sequence, clock.forward(-5), excess_gpus=1)
    measure(store, sequence, clock.forward(10), excess_gpus=1)
    assert sums(store) == (15, 0, 0, None)


def test_ended_or_unknown_attempt_is_not_measured(store: JobStore, clock: Clock) -> None:
    sequence = add(store).sequence
    measure(store, sequence, clock.time, excess_gpus=1)
    assert rows(store) == []
    begin(store)
    end(store, SUCCEEDED)
    measure(store, sequence, clock.forward(10), excess_gpus=1)
    assert sums(store) == (0, 0, 0, None)


def test_measurement_after_the_end_does_not_extend_it(store: JobStore, clock: Clock) -> None:
    """The gateway measured during an outage of the node, before it learned that the attempt had ended."""
    sequence = add(store).sequence
    begin(store)
    measure(store, sequence, clock.forward(50), borrowed=True)
    clock.forward(50)
    finish(store, at(30))
    assert spans(store) == [(0, 30)]
    assert sums(store) == (0, 0, 0, None)


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
