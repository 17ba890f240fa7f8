"""Retries of storage operations during an outage."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")

_OUTAGE_SECONDS = 600.0

_PAUSE_SECONDS = 1.0

_WARN_SECONDS = 30.0

_FINAL = ("ACCESS_DENIED", "NO_SUCH_BUCKET", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "VALIDATION")
"""Arrow's names of what does not pass by itself (`aws-cpp-sdk-s3`, S3Errors)."""

_log = logging.getLogger(__name__)


def retry(call: Callable[[], _Result], passes: Callable[[Exception], bool] | None = None) -> _Result:
    """Call until it works, for at most ten minutes; a failure that does not pass by itself is raised at once."""
    may_pass = passes or passes_by_itself
    started = time.monotonic()
    warned = started - _WARN_SECONDS
    while True:
        try:
            return call()
        except Exception as error:
            now = time.monotonic()
            if not may_pass(error) or now - started > _OUTAGE_SECONDS:
                raise
            if now - warned >= _WARN_SECONDS:
                _log.warning("The storage is away, this waits for it: %s", error)
                warned = now
            time.sleep(_PAUSE_SECONDS)


def passes_by_itself(error: Exception) -> bool:
    """Whether an error of pyarrow's tells of an S3 server that is away, and not of a request that it refuses."""
    text = str(error)
    return isinstance(error, OSError) and "AWS Error" in text and not any(reason in text for reason in _FINAL)
