"""Departure of a training whose job is asked to leave: its workers learn of the notice and save, then the driver ends.

The gateway writes the notice into the job's folder and stops the entry point with SIGTERM; SIGKILL follows at the
deadline. The driver stays until then while it trains, and ends as soon as Ray Train lists a newer checkpoint than the
notice.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import cache

from mlplatform.compat.ray_driver import before_sigterm
from mlplatform.compat.ray_train import active_fits
from mlplatform.errors import PlatformError
from mlplatform.storage import addresses, notice
from mlplatform.storage import checkpoint_layout as layout
from mlplatform.storage.small_files import modified
from mlplatform.tracking import ending

_LOOK_SECONDS = 1.0
"""Pause between two looks for a notice or a checkpoint: no store tells of either. Each is a small read."""

_log = logging.getLogger(__name__)


def stay_until_saved() -> None:
    """Let this driver stay after the SIGTERM of a notice until its trainings have saved; call it before each training.

    It replaces the handler of SIGTERM, and calls that one for any other SIGTERM.
    """
    if notice.applies():
        before_sigterm(_departure().stays)


def announce(tell: Callable[[float], None]) -> None:
    """Call `tell` with the deadline, in seconds since 1970, when this process' job is asked to leave."""
    if notice.applies():
        threading.Thread(target=_announce, args=(tell,), name="notice", daemon=True).start()


def is_asked() -> bool:
    """Return whether this process' job was asked to leave; False if the storage does not tell."""
    return notice.applies() and _received() is not None


def _announce(tell: Callable[[float], None]) -> None:
    while (received := _received()) is None:
        time.sleep(_LOOK_SECONDS)
    tell(received.deadline)


def _received() -> notice.Notice | None:
    try:
        return notice.received()
    except PlatformError as error:
        _log.warning("%s", error)
        return None


class _Departure:
    """Departure of this driver."""

    def __init__(self) -> None:
        self._fits = active_fits()
        self._leaves = False
        self._saved = False

    def stays(self) -> bool:
        """Return whether the driver stays after a SIGTERM: after that of a notice, until its trainings have saved."""
        if self._leaves:
            return not self._saved
        received = _received() if self._fits else None
        if received is None:
            return False
        self._leaves = True
        _log.warning("This training leaves when it has saved a checkpoint, by the end of its time. %s", received.why)
        atexit.register(self._note_end, ending.ExitRecorder())
        threading.Thread(target=self._wait, args=(set(self._fits),), name="departure", daemon=True).start()
        return True

    def _wait(self, trainings: set[str]) -> None:
        """Wait until all these trainings have saved, and end the driver; one that ends by itself ends the wait."""
        while trainings <= self._fits:
            if all(map(_has_saved, trainings)):
                self._saved = True
                os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(_LOOK_SECONDS)

    def _note_end(self, ended: ending.ExitRecorder) -> None:
        """Record that the program has ended by itself: Ray does not tell that from the stop."""
        failed = hasattr(sys, "last_value") or (ended.error and ending.status_after(ended.error) != "FINISHED")
        if not self._saved and not failed:
            notice.finish()


@cache
def _departure() -> _Departure:
    return _Departure()


def _has_saved(training: str) -> bool:
    """Return whether the list of a training's checkpoints is as new as the notice, by the clock of the storage."""
    try:
        listed = modified(addresses.checkpoint_uri(f"{training}/{layout.SNAPSHOT}"))
        asked = modified(addresses.checkpoint_uri(notice.NAME))
    except OSError as error:
        _log.warning("Cannot tell whether %s has saved a checkpoint: %s", training, error)
        return False
    return listed is not None and asked is not None and listed >= asked
