"""Hands things over to a thread that delivers them, however long the receiver is away."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from mlplatform.errors import FencedError

_FLUSH_SECONDS = 120.0
"""At the end of a training; above the 60 s that a restart of MLflow, Postgres or MinIO takes at the longest."""

_RETRY_SECONDS = 1.0

_WARN_SECONDS = 30.0

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Where an outbox delivers to. It is pickled before its first use, so it connects in `open`."""

    name: str

    def open(self) -> None:
        """Called once, in the outbox' thread, before the first delivery; repeated until it does not raise."""

    def send(self, items: Sequence[Any]) -> None:
        """Deliver; whatever is raised, the same items come again. What can never be delivered must not raise.

        FencedError ends it: nothing is delivered from here any more.
        """


class Outbox:
    """Delivers to a sink, in order, from a thread of its own; handing over neither waits nor raises."""

    def __init__(self, sink: Sink, interval_s: float = 0.0) -> None:
        """Args: interval_s: least time between two deliveries, for a sink where each one is dear."""
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
        """Queue and thread belong to a process: Ray's controller gets an outbox of its own."""
        return Outbox, (self._sink, self._interval)

    def put(self, items: Sequence[Any]) -> None:
        """Hand items over; the thread starts with the first."""
        if self._fenced.is_set():
            return
        with self._lock:
            self._pending.extend(items)
        self._queue.put(list(items))
        if self._thread is None:
            self._thread = threading.Thread(target=self._deliver_all, name=f"outbox {self._sink.name}", daemon=True)
            self._thread.start()

    def pending(self) -> list[Any]:
        """What was handed over and is not yet known to be delivered, in order."""
        with self._lock:
            return list(self._pending)

    def close(self, timeout_s: float = _FLUSH_SECONDS) -> None:
        """Wait until everything is delivered, at most `timeout_s` seconds; says so where that was too short."""
        if self._thread is None or self._fenced.is_set():
            return
        self._deadline = time.monotonic() + timeout_s
        self._closing.set()
        self._queue.put(None)
        self._thread.join(timeout_s + _RETRY_SECONDS)
        if self._fenced.is_set():
            return
        if self._thread.is_alive() or not self._queue.empty():
            _log.warning("%s did not take everything within %.0f s; what it has stays.", self._sink.name, timeout_s)

    def _deliver_all(self) -> None:
        if not self._until_it_works(self._sink.open):
            return
        more = True
        while more:
            more, items = self._next_batch()
            if items and not self._until_it_works(self._sink.send, items):
                return
            with self._lock:
                del self._pending[: len(items)]
            self._closing.wait(self._interval)

    def _next_batch(self) -> tuple[bool, list[Any]]:
        """Wait for items, then take all there are; False once the outbox is being closed."""
        batch: list[Any] = []
        items = self._queue.get()
        while items is not None:
            batch.extend(items)
            try:
                items = self._queue.get_nowait()
            except queue.Empty:
                return True, batch
        return False, batch

    def _until_it_works(self, call: Any, *arguments: Any) -> bool:
        warned = float("-inf")
        while self._deadline is None or time.monotonic() < self._deadline:
            try:
                call(*arguments)
                return True
            except FencedError as error:
                _log.warning("%s gets nothing more from here: %s", self._sink.name, error)
                self._fenced.set()
                return False
            except Exception as error:
                if time.monotonic() - warned > _WARN_SECONDS:
                    _log.warning("%s is away, what is meant for it waits: %s", self._sink.name, error)
                    warned = time.monotonic()
                time.sleep(_RETRY_SECONDS)
        return False
