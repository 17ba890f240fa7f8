"""Delay of the end of a trial's trainer until Ray Tune has its last report."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from mlplatform.compat.ray_train import ControllerCallback

_DRAIN_SECONDS = 30.0


class Drain(ControllerCallback):  # type: ignore[misc]
    """Callback that delays the end of a trial's trainer until Ray Tune has fetched the last report.

    Ray 2.60 blocks the trial forever if its function returns before a report is fetched: the trial's actor then puts
    that report into a queue with one slot, which the function's end already occupies (`_get_result_from_queues`).
    """

    def __init__(self, queue: Any) -> None:
        """Set up the callback.

        Args:
            queue: queue through which `TuneReportCallback` passes reports on.
        """
        self._queue = queue

    async def before_controller_shutdown(self) -> None:
        deadline = time.monotonic() + _DRAIN_SECONDS
        while not await asyncio.to_thread(self._queue.empty) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
