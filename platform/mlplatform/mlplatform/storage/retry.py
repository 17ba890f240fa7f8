"""Retries of storage operations during an outage."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from mlplatform.compat.pyarrow import is_outage
from mlplatform.text.throttle import ThrottledWarning

_Result = TypeVar("_Result")

_OUTAGE_SECONDS = 600.0

_PAUSE_SECONDS = 1.0

_log = logging.getLogger(__name__)


def retry(call: Callable[[], _Result], is_transient: Callable[[Exception], bool] = is_outage) -> _Result:
    """Call until it succeeds, for up to ten minutes after its first failure, however long that call took.

    An error that is not transient is raised at once.
    """
    failed: float | None = None
    warn = ThrottledWarning(_log)
    while True:
        try:
            return call()
        except Exception as error:
            now = time.monotonic()
            failed = now if failed is None else failed
            if not is_transient(error) or now - failed > _OUTAGE_SECONDS:
                raise
            warn("Storage is unavailable, retrying for up to 10 min: %s", error)
            time.sleep(_PAUSE_SECONDS)
