import threading
from collections.abc import Sequence

import pytest

from mlplatform.tracking import outbox
from mlplatform.tracking.outbox import Outbox


class Shelf:
    """A sink that keeps what it gets, and is away for its first `absences` calls."""

    name = "Shelf"

    def __init__(self, absences: int = 0) -> None:
        self.items: list[int] = []
        self.absences = absences
        self.opened = threading.Event()

    def open(self) -> None:
        self.opened.set()

    def send(self, items: Sequence[int]) -> None:
        if self.absences:
            self.absences -= 1
            raise ConnectionError("away")
        self.items.extend(items)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_RETRY_SECONDS", 0.01)


def test_everything_arrives_in_order_before_it_is_closed() -> None:
    shelf = Shelf()
    box = Outbox(shelf)
    for number in range(100):
        box.put([number, number])
    box.close()
    assert shelf.items == [number for number in range(100) for _ in (0, 1)]


def test_what_was_handed_over_while_the_receiver_was_away_arrives_once_and_in_order() -> None:
    shelf = Shelf(absences=3)
    box = Outbox(shelf)
    box.put([1])
    shelf.opened.wait(5)
    box.put([2])
    box.close()
    assert shelf.items == [1, 2]


def test_an_end_while_the_receiver_is_away_is_bounded_and_said(caplog: pytest.LogCaptureFixture) -> None:
    box = Outbox(Shelf(absences=10**9))
    box.put([1])
    box.close(timeout_s=0.2)
    assert "Shelf is away" in caplog.text


def test_an_outbox_that_got_nothing_closes_at_once() -> None:
    Outbox(Shelf(absences=10**9)).close()
