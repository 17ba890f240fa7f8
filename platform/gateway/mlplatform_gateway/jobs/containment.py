"""Containment of errors: none stops a loop or the other jobs, and repeated steps do not fill the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from mlplatform.errors import PlatformError, UnreachableError
from mlplatform.text.throttle import ThrottledWarning
from mlplatform_gateway.errors import NoSuchJobError

_LOG_AGAIN_SECONDS = 30.0
"""Seconds between two logged errors of a job; steps are repeated twice per second."""

_log = logging.getLogger(__name__)


class JobErrors:
    """Log of errors of single jobs, at most one per job in 30 s."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    @contextmanager
    def contained(self, job_id: str) -> Iterator[None]:
        """Log and drop an error of one job's step.

        Raises:
            UnreachableError: a service is unavailable, which concerns every job.
        """
        try:
            yield
        except UnreachableError:
            raise
        except NoSuchJobError:
            pass  # deleted meanwhile
        except Exception:
            present = time.monotonic()
            self._logged = {key: at for key, at in self._logged.items() if present - at < _LOG_AGAIN_SECONDS}
            if job_id not in self._logged:
                self._logged[job_id] = present
                _log.exception("A step of job %s failed and will be retried.", job_id)


async def unless_log_unavailable(work: Coroutine[Any, Any, object]) -> None:
    """Await work on a job's log; a failure of its storage is a warning only, as jobs do not depend on logs."""
    try:
        await work
    except PlatformError as error:
        _log.warning("%s", error)


async def repeat(work: Callable[[], Awaitable[object]], pause: Callable[[], Awaitable[object]], failure: str) -> None:
    """Repeat work forever, with a pause after each time; log errors, each after what it means, the `failure`."""
    warn = ThrottledWarning(_log)
    while True:
        try:
            await work()
        except PlatformError as error:
            warn("%s: %s", failure, error)
        except Exception:
            _log.exception("%s; this will be retried.", failure)
        await pause()
