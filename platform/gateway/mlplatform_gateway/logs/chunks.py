"""Chunks of logs in the object store, under `logs/<job id>/<number>.log`."""

from __future__ import annotations

from urllib.parse import quote

import anyio
from anyio.to_thread import run_sync

from mlplatform.storage.objects import ObjectStore

_READ_THREADS, _WRITE_THREADS = 16, 8


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
