"""Writer of changed logs to the object store: each at most once per second, with retries while it is unavailable."""

from __future__ import annotations

import asyncio
import logging
import time

from mlplatform.gateway.logs.chunks import Chunks
from mlplatform.gateway.logs.job_log import JobLog
from mlplatform.throttle import ThrottledWarning

_WRITE_SECONDS = 1.0

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
                await asyncio.sleep(_WRITE_SECONDS)
                continue
            if not job.pending:
                job.saved.set()
            try:
                async with asyncio.timeout(_WRITE_SECONDS):
                    await job.hurry.wait()
                job.hurry.clear()
            except TimeoutError:
                pass
        job.queued = False
        job.saved.set()

    async def _write(self, job: JobLog) -> None:
        async with job.writing:
            while job.unsaved and not job.deleted:
                number = next(iter(job.unsaved))
                await self._chunks.write(job.id, number, job.unsaved[number])
                del job.unsaved[number]
            if job.deleted:
                return
            obsolete, snapshot = list(job.obsolete), job.snapshot()
            await self._chunks.write(job.id, job.number, job.content())
            job.written(snapshot)
            # Only now does no stored chunk list them.
            for number in obsolete:
                await self._chunks.delete(job.id, number)
                job.obsolete.remove(number)
