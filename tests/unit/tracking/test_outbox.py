import threading
from collections.abc import Sequence

import pytest
from waiting import wait_for

from mlplatform.tracking import outbox
from mlplatform.tracking.outbox import Outbox


class Shelf:
    """A sink that stores its items and is unavailable for the first `absences` calls."""

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
            raise ConnectionError("unavailable")
        self.items.extend(items)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_RETRY_SECONDS", 0.01)


def test_all_items_arrive_in_order_before_close() -> None:
    shelf = Shelf()
    box = Outbox(shelf)
    for number in range(100):
        box.put([number, number])
    box.close()
    assert shelf.items == [number for number in range(100) for _ in (0, 1)]


def test_items_queued_during_outage_arrive_exactly_once() -> None:
    shelf = Shelf(absences=3)
    box = Outbox(shelf)
    box.put([1])
    shelf.opened.wait(5)
    box.put([2])
    box.close()
    assert shelf.items == [1, 2]


def test_close_during_outage_times_out_and_counts_losses(caplog: pytest.LogCaptureFixture) -> None:
    box = Outbox(Shelf(absences=10**9))
    box.put([1, 2])
    box.put([3])
    box.close(timeout_s=0.2)
    assert "Shelf is unavailable" in caplog.text
    loss = "Shelf did not accept 3 items within 0.2 s; they were dropped unless a later checkpoint carries them."
    assert loss in caplog.text
    assert box.pending() == [1, 2, 3], "the message does not give the number of lost items"


def test_delivered_items_do_not_count_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf()
    box = Outbox(shelf)
    box.put([1, 2])
    wait_for(lambda: not box.pending(), "the delivery")
    shelf.absences = 10**9
    box.put([3])
    box.close(timeout_s=0.2)
    assert "did not accept 1 item within" in caplog.text
    assert shelf.items == [1, 2]


def test_empty_outbox_closes_at_once() -> None:
    Outbox(Shelf(absences=10**9)).close()
