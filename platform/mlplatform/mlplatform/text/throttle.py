"""Limit of recurring warnings."""

from __future__ import annotations

import logging
import time

WARN_SECONDS = 30.0


class ThrottledWarning:
    """Warning that is logged at most every 30 s; the others are dropped.

    Args:
        log: the logger.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._next = float("-inf")

    def __call__(self, message: str, *args: object) -> None:
        """Log `message % args`, unless less than 30 s have passed since the last warning."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + WARN_SECONDS
            self._log.warning(message, *args)
