"""Retries of storage operations during an outage."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from mlplatform.compat.pyarrow import is_outage

_Result = TypeVar("_Result")

_OUTAGE_SECONDS = 600.0

_PAUSE_SECONDS = 1.0

_WARN_SECONDS = 30.0

_log = logging.getLogger(__name__)


def retry(call: Callable[[], _Result], passes: Callable[[Exception], bool] | None = None) -> _Result:
    """Call until it works, for at most ten minutes; a failure that does not pass by itself is raised at once."""
    may_pass = passes or is_outage
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
