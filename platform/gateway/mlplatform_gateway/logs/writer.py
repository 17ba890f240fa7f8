"""Writer of changed logs to the object store: each at most once per second, or 10 times while someone waits for it.

It repeats writes that the store does not accept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from mlplatform.text.throttle import ThrottledWarning
from mlplatform_gateway.logs.chunks import Chunks
from mlplatform_gateway.logs.job_log import JobLog

_WRITE_SECONDS = 1.0

_AWAITED_SECONDS = 0.1

_FLUSH_SECONDS = 5.0

_log = logging.getLogger(__name__)


class LogWriter:
    """Queue of changed logs, with `run` as a background task."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._queue: asyncio.Queue[JobLog] = asyncio.Queue()
        self._warn = ThrottledWarning(_log)

    def changed(self, job: JobLog) -> None:
        """Wake the log's readers, and queue it unless the store has all of it."""
        job.used = time.monotonic()
        job.announce()
        if job.pending and not job.queued and not job.deleted:
            job.queued = True
            self._queue.put_nowait(job)

    async def flush(self, jobs: list[JobLog]) -> None:
        """Wait up to 5 s until the store has the logs."""
        try:
            async with asyncio.timeout(_FLUSH_SECONDS):
                for job in jobs:
                    while job.pending and not job.deleted:
                        job.saved.clear()
                        job.hurry.set()
                        await job.saved.wait()
        except TimeoutError:
            _log.warning("The log store is unavailable; unwritten lines stay in memory and on the nodes.")

    async def run(self) -> None:
        """Write the queued logs; never returns."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._save(await self._queue.get()))

    async def _save(self, job: JobLog) -> None:
        """Write a log's changes until there are none; retry while the store is unavailable."""
        while (job.pending or job.obsolete) and not job.deleted:
            try:
                await self._write(job)
            except Exception as error:
                self._warn("The log store does not accept logs, retrying: %s", error)
                job.rejected = True
                job.announce()
                await asyncio.sleep(_WRITE_SECONDS)
                continue
            if not job.pending:
                job.saved.set()
            await self._pause(job)
        job.queued = False
        job.saved.set()

    async def _pause(self, job: JobLog) -> None:
        """Wait for the next write of a log, which may have changed meanwhile."""
        await asyncio.sleep(_AWAITED_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(_WRITE_SECONDS - _AWAITED_SECONDS):
                await job.hurry.wait()
        job.hurry.clear()

    async def _write(self, job: JobLog) -> None:
        async with job.writing:
            while job.unsaved and not job.deleted:
                number = next(iter(job.unsaved))
                await self._chunks.write(job.id, number, job.unsaved[number])
                del job.unsaved[number]
                job.announce()
            if job.deleted:
                return
            obsolete, snapshot = list(job.obsolete), job.snapshot()
            await self._chunks.write(job.id, job.number, job.content())
            job.written(snapshot)
            job.announce()
            # Only now does no stored chunk list them.
            for number in obsolete:
                await self._chunks.delete(job.id, number)
                job.obsolete.remove(number)
