"""Bursts of submissions: they are accepted before their jobs start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_HOLD_SECONDS = 2.0
"""Longest time for which starts wait, because each takes a second of CPU time or more."""


class Bursts:
    """Submissions that are being accepted at this moment."""

    def __init__(self) -> None:
        self._submissions = 0
        self._began = float("-inf")

    @contextmanager
    def submission(self) -> Iterator[None]:
        """Note that a job is being accepted while the block runs."""
        self._submissions += 1
        try:
            yield
        finally:
            self._submissions -= 1

    def may_begin(self) -> bool:
        """Return whether waiting jobs may start now; they may at least every two seconds."""
        if self._submissions and time.monotonic() - self._began < _HOLD_SECONDS:
            return False
        self._began = time.monotonic()
        return True
