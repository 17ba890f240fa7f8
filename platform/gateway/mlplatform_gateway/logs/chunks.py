"""Chunks of logs in the object store, under `logs/<job id>/<number>.log`, and the writer of changed logs."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from urllib.parse import quote

import anyio
from anyio.to_thread import run_sync

from mlplatform.storage.objects import ObjectStore
from mlplatform.text.throttle import ThrottledWarning
from mlplatform_gateway.logs.job_log import JobLog

_READ_THREADS, _WRITE_THREADS = 16, 8
_WRITE_SECONDS = 1.0
_AWAITED_SECONDS = 0.1
_FLUSH_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Chunks:
    """Store of chunks. Reads and writes have separate threads, so that neither waits for the other.

    Every method raises StorageError, UnreachableError or AccessError while the object store is unavailable.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._readers, self._writers = anyio.CapacityLimiter(_READ_THREADS), anyio.CapacityLimiter(_WRITE_THREADS)

    async def numbers(self, job_id: str) -> list[int]:
        """Return the numbers of a job's chunks, in order."""
        entries = await run_sync(self._objects.find, _folder(job_id), limiter=self._readers)
        names = (entry.key.rsplit("/", 1)[1].removesuffix(".log") for entry in entries)
        return sorted(int(name) for name in names if name.isdecimal())

    async def read(self, job_id: str, number: int) -> str:
        """Return a chunk: a line of JSON, then the text."""
        return await run_sync(self._objects.read, _key(job_id, number), limiter=self._readers)

    async def write(self, job_id: str, number: int, content: str) -> None:
        """Store a chunk, replacing an earlier version."""
        await run_sync(self._objects.write, _key(job_id, number), content, limiter=self._writers)

    async def delete(self, job_id: str, number: int) -> None:
        """Delete a chunk."""
        await run_sync(self._objects.delete, _key(job_id, number), limiter=self._writers)

    async def delete_all(self, job_id: str) -> None:
        """Delete everything in a job's folder."""
        for entry in await run_sync(self._objects.find, _folder(job_id), limiter=self._readers):
            await run_sync(self._objects.delete, entry.key, limiter=self._writers)


def _folder(job_id: str) -> str:
    # After quoting, only a name made of dots could leave the folder.
    name = quote(job_id, safe="")
    return f"logs/{name if name.strip('.') else name.replace('.', '%2E')}/"


def _key(job_id: str, number: int) -> str:
    return f"{_folder(job_id)}{number:08d}.log"


class LogWriter:
    """Queue of changed logs, with `run` as a background task.

    Each is written at most once per second, or 10 times while someone waits for it. Writes that the store does not
    accept are repeated.
    """

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
