"""Queue with a delivery thread, which retries for as long as the receiver is unavailable."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from mlplatform.errors import FencedError
from mlplatform.text.throttle import ThrottledWarning

FLUSH_SECONDS = 120.0
"""Time limit for the last deliveries of a training; a restart of MLflow or what it stores in takes up to 60 s."""

_RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Receiver of an outbox. It is pickled before its first use, so it connects in `open`."""

    name: str

    def open(self) -> None:
        """Connect; called in the outbox's thread before the first delivery, and retried until it does not raise."""

    def send(self, items: Sequence[Any]) -> None:
        """Deliver items; after any exception the same items are retried, so it must not raise for an undeliverable one.

        Raises:
            FencedError: ends the outbox; nothing more is delivered.
        """


class Outbox:
    """Queue whose items a separate thread delivers to a sink, in order; `put` neither waits nor raises."""

    def __init__(self, sink: Sink, interval_s: float = 0.0) -> None:
        """Start nothing yet; the thread starts with the first items.

        Args:
            sink: receiver of the items.
            interval_s: minimum seconds between two deliveries, for a sink where each delivery is expensive.
        """
        self._sink = sink
        self._interval = interval_s
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pending: list[Any] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._fenced = threading.Event()
        self._deadline: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without queue and thread: Ray's controller gets an outbox of its own."""
        return Outbox, (self._sink, self._interval)

    def put(self, items: Sequence[Any]) -> None:
        """Queue items for delivery."""
        if self._fenced.is_set():
            return
        with self._lock:
            self._pending.extend(items)
        self._queue.put(list(items))
        if self._thread is None:
            self._thread = threading.Thread(target=self._deliver_all, name=f"outbox {self._sink.name}", daemon=True)
            self._thread.start()

    def pending(self) -> list[Any]:
        """Return the queued items whose delivery is not confirmed, in order."""
        with self._lock:
            return list(self._pending)

    def close(self, timeout_s: float = FLUSH_SECONDS) -> None:
        """Wait until everything is delivered, at most `timeout_s` seconds; log the number of items that were not."""
        if self._thread is None or self._fenced.is_set():
            return
        self._deadline = time.monotonic() + timeout_s
        self._closing.set()
        self._queue.put(None)
        self._thread.join(timeout_s + _RETRY_SECONDS)
        if not self._fenced.is_set() and (dropped := len(self.pending())):
            _log.warning(
                "%s did not accept %s within %g s; they were dropped unless a later checkpoint carries them.",
                self._sink.name,
                _items(dropped),
                timeout_s,
            )

    def _deliver_all(self) -> None:
        if not self._retry(self._sink.open):
            return
        more = True
        while more:
            more, items = self._next_batch()
            if items and not self._retry(self._sink.send, items):
                return
            with self._lock:
                del self._pending[: len(items)]
            self._closing.wait(self._interval)

    def _next_batch(self) -> tuple[bool, list[Any]]:
        """Wait for items and return all that are queued; with False once the outbox is being closed."""
        batch: list[Any] = []
        items = self._queue.get()
        while items is not None:
            batch.extend(items)
            try:
                items = self._queue.get_nowait()
            except queue.Empty:
                return True, batch
        return False, batch

    def _retry(self, call: Any, *arguments: Any) -> bool:
        """Call until it does not raise; return False if it was fenced or the outbox's time limit has passed."""
        warn = ThrottledWarning(_log)
        while self._deadline is None or time.monotonic() < self._deadline:
            try:
                call(*arguments)
                return True
            except FencedError as error:
                _log.warning("%s gets nothing more from here: %s", self._sink.name, error)
                self._fenced.set()
                return False
            except Exception as error:
                warn("%s is unavailable, %s queued: %s", self._sink.name, _items(len(self.pending())), error)
                time.sleep(_RETRY_SECONDS)
        return False


def _items(number: int) -> str:
    return f"{number} item" if number == 1 else f"{number} items"
