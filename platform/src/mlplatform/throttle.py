"""Limits per interval: of recurring warnings, and of failed log-ins per address."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict, deque

WARN_SECONDS = 30.0

FAILED_LOGINS, LOGIN_SECONDS = 10, 60.0

_ADDRESSES = 10_000
"""Addresses remembered at once, which need 5 MB; the one that failed least recently is forgotten first."""


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


class LoginThrottle:
    """Count of failed log-ins per address within the last minute, in memory and for all threads of the process.

    Only failures are throttled. Callers check the credentials first and accept valid ones in any case: containers can
    share an address, and a broken client must not lock out the others.

    Args:
        failures: failed log-ins of one address within `interval_s` that are answered as such.
        interval_s: length of the sliding window in seconds.
        addresses: limit of the addresses that are remembered.
    """

    def __init__(
        self, failures: int = FAILED_LOGINS, interval_s: float = LOGIN_SECONDS, addresses: int = _ADDRESSES
    ) -> None:
        self._failures, self._interval, self._addresses = failures, interval_s, addresses
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def fail(self, address: str) -> int:
        """Count a failed log-in; return the `Retry-After` in whole seconds if the limit was reached before, else 0."""
        with self._lock:
            recent = self._recent(address)
            if left := self._left(recent):
                return left
            recent.append(time.monotonic())
            self._failed[address] = recent
            self._failed.move_to_end(address)
            if len(self._failed) > self._addresses:
                self._failed.popitem(last=False)
            return 0

    def seconds_left(self, address: str) -> int:
        """Return the seconds until a failed log-in of the address is answered as such again, 0 for at once."""
        with self._lock:
            return self._left(self._recent(address))

    def _recent(self, address: str) -> deque[float]:
        recent = self._failed.get(address, deque())
        while recent and time.monotonic() - recent[0] >= self._interval:
            recent.popleft()
        return recent

    def _left(self, recent: deque[float]) -> int:
        if len(recent) < self._failures:
            return 0
        return max(1, math.ceil(recent[0] + self._interval - time.monotonic()))


def throttled_text(seconds: int) -> str:
    """Return the sentence of a response 429 (`Too Many Requests`) to a failed log-in."""
    return (
        f"Too many failed log-ins from this address; correct the token or password and retry in {seconds} s. "
        "Valid credentials are accepted meanwhile."
    )
