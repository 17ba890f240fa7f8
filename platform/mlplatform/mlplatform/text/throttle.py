"""Limit of recurring warnings."""

from __future__ import annotations

import logging
import time

WARN_SECONDS = 30.0


class ThrottledWarning:
    """Warning that is logged at most once per interval; the others are dropped.

    Args:
        log: the logger.
        interval_s: seconds between two warnings.
    """

    def __init__(self, log: logging.Logger, interval_s: float = WARN_SECONDS) -> None:
        self._log, self._interval = log, interval_s
        self._next = float("-inf")

    def __call__(self, message: str, *args: object) -> None:
        """Log `message % args`, unless the last warning is more recent than the interval."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + self._interval
            self._log.warning(message, *args)
