"""Departure of a training whose job is asked to leave: its workers learn of the notice, save, and the driver ends.

The gateway writes the notice into the job's folder and stops the entry point with SIGTERM; SIGKILL follows at the
deadline. Until then, the driver stays, and ends as soon as Ray Train lists a checkpoint that it did not list before.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable

from mlplatform.compat import ray_checkpoints as layout
from mlplatform.compat.ray_driver import before_sigterm
from mlplatform.errors import PlatformError
from mlplatform.storage import notice
from mlplatform.storage.small_files import read_text

_LOOK_SECONDS = 1.0
"""Pause between two looks for a notice or a checkpoint: no store tells of either. Each is a small read."""

_log = logging.getLogger(__name__)


def stay_until_saved(uri: str) -> None:
    """Let this driver stay after the SIGTERM of a notice until its training has saved a checkpoint.

    Args:
        uri: address of the training run's folder.
    """
    if notice.applies():
        before_sigterm(_Departure(uri).stays)


def announce(tell: Callable[[float], None]) -> None:
    """Call `tell` with the deadline, in seconds since 1970, when this process' job is asked to leave."""
    if notice.applies():
        threading.Thread(target=_announce, args=(tell,), name="notice", daemon=True).start()


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
    """Departure of a driver."""

    def __init__(self, uri: str) -> None:
        self._snapshot = f"{uri}/{layout.SNAPSHOT}"
        self._leaves = False
        self._saved = False

    def stays(self) -> bool:
        """Return whether the driver stays after a SIGTERM: if it is that of a notice, until the training has saved."""
        if self._leaves:
            return not self._saved
        received = _received()
        if received is None:
            return False
        self._leaves = True
        _log.warning("This training leaves when it has saved a checkpoint, by the end of its time. %s", received.why)
        threading.Thread(target=self._wait, args=(self._listed(),), name="departure", daemon=True).start()
        return True

    def _wait(self, before: str | None) -> None:
        while (listed := self._listed()) is None or listed == before:
            time.sleep(_LOOK_SECONDS)
        self._saved = True
        os.kill(os.getpid(), signal.SIGTERM)

    def _listed(self) -> str | None:
        try:
            return read_text(self._snapshot)
        except OSError as error:
            _log.warning("Cannot read %s: %s", self._snapshot, error)
            return None
