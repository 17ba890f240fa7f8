import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from mlplatform.tracking.metric_names import name_among, valid_name
from mlplatform.tracking.metrics import Point, RunSink, not_yet_sent
from mlplatform.tracking.outbox import Outbox


class Picky:
    """A run that rejects batches with a bad metric and, once deleted, everything."""

    def __init__(self, bad: str = "", deleted: bool = False) -> None:
        self.bad, self.deleted, self.requests = bad, deleted, 0
        self.points: list[Point] = []

    def log(self, points: Sequence[Point]) -> str | None:
        self.requests += 1
        if self.deleted or self.bad in [point.key for point in points]:
            return "400, no"
        self.points.extend(points)
        return None


def sink_of(run: Any) -> RunSink:
    sink = RunSink("run", None)
    sink._run = run
    return sink


def points_of(*keys: str, step: int = 1) -> list[Point]:
    return [Point(key, float(number), step, 1) for number, key in enumerate(keys)]


def test_replayed_step_adds_no_second_point() -> None:
    first, second, replayed, third = (Point("loss", step / 10, step, step) for step in (1, 2, 2, 3))
    sent: dict[str, int] = {}
    assert not_yet_sent([first, second], sent) == [first, second]
    assert not_yet_sent([replayed, third], sent) == [third]
    assert not_yet_sent([Point("accuracy", 0.5, 1, 9)], sent) == [Point("accuracy", 0.5, 1, 9)]


def test_pickled_writer_excludes_queue_and_thread() -> None:
    writer = Outbox(RunSink("run", "http://127.0.0.1:9"))
    assert pickle.loads(pickle.dumps(writer)).__dict__.keys() == writer.__dict__.keys()  # noqa: S301 - our own bytes


@pytest.mark.parametrize("keys", [("a[0]", "a(0)", "a{0}"), ("x" * 300, "x" * 301), ("val//loss", "val/loss")])
def test_renamed_metrics_stay_distinct(keys: tuple[str, ...]) -> None:
    names: dict[str, str] = {}
    given = [name_among(key, names) for key in keys]
    assert len(set(given)) == len(keys)
    assert given == [name_among(key, names) for key in keys], "a metric got another name the second time"
    assert all(valid_name(name) == name for name in given)


def test_metrics_with_colliding_names_all_arrive() -> None:
    run = Picky()
    sink = sink_of(run)
    for step in (1, 2):
        sink.send(points_of("a[0]", "a(0)", step=step))
    assert [(point.key, point.value, point.step) for point in run.points] == [
        ("a_0_", 0.0, 1),
        ("a_0__2", 1.0, 1),
        ("a_0_", 0.0, 2),
        ("a_0__2", 1.0, 2),
    ]


def test_rejected_metric_does_not_lose_others(caplog: pytest.LogCaptureFixture) -> None:
    run = Picky(bad="bad")
    sink_of(run).send(points_of("a", "b", "bad", "c", "d"))
    assert [point.key for point in run.points] == ["a", "b", "c", "d"]
    assert "'bad'" in caplog.text
    assert "400, no" in caplog.text


@pytest.mark.parametrize(("outage", "arrives"), [(3, True), (10, False)])
def test_points_are_resent_after_database_error(outage: int, arrives: bool) -> None:
    class Troubled(Picky):
        def log(self, points: Sequence[Point]) -> str | None:
            if self.requests < outage:
                self.requests += 1
                return "400, BAD_REQUEST: connection already closed"
            return super().log(points)

    run = Troubled()
    sink, failed = sink_of(run), 0
    while True:
        try:
            sink.send(points_of("loss"))
            break
        except ConnectionError:
            failed += 1
    assert failed <= 5
    assert bool(run.points) is arrives


def test_separate_database_errors_drop_no_points() -> None:
    class Troubled(Picky):
        def log(self, points: Sequence[Point]) -> str | None:
            self.requests += 1
            return "400, BAD_REQUEST: connection already closed" if self.requests % 2 else super().log(points)

    run = Troubled()
    sink = sink_of(run)
    for step in range(12):
        run.requests = 0
        with pytest.raises(ConnectionError):
            sink.send(points_of("loss", step=step))
        sink.send(points_of("loss", step=step))
    assert [point.step for point in run.points] == list(range(12))


def test_bad_point_among_good_ones_is_dropped_in_the_end() -> None:
    class Troubled(Picky):
        def log(self, points: Sequence[Point]) -> str | None:
            return "400, BAD_REQUEST: too large" if super().log(points) else None

    run = Troubled(bad="bad")
    sink = sink_of(run)
    for _try in range(5):
        with pytest.raises(ConnectionError):
            sink.send(points_of("good", "bad"))
    sink.send(points_of("good", "bad"))
    assert {point.key for point in run.points} == {"good"}


def test_deleted_run_gets_only_two_requests() -> None:
    run = Picky(deleted=True)
    sink_of(run).send(points_of(*(f"metric {number}" for number in range(900))))
    assert run.requests == 2
