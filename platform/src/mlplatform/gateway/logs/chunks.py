"""Chunks of logs in the object store, under `logs/<job id>/<number>.log`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar
from urllib.parse import quote

import anyio.to_thread

from mlplatform.storage.objects import ObjectStore

_Result = TypeVar("_Result")

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
        entries = await _in_thread(self._readers, partial(self._objects.find, _folder(job_id)))
        names = (entry.key.rsplit("/", 1)[1].removesuffix(".log") for entry in entries)
        return sorted(int(name) for name in names if name.isdecimal())

    async def read(self, job_id: str, number: int) -> str:
        """Return a chunk: a line of JSON, then the text."""
        return await _in_thread(self._readers, partial(self._objects.read, _key(job_id, number)))

    async def write(self, job_id: str, number: int, content: str) -> None:
        """Store a chunk, replacing an earlier version."""
        await _in_thread(self._writers, partial(self._objects.write, _key(job_id, number), content))

    async def delete(self, job_id: str, number: int) -> None:
        """Delete a chunk."""
        await _in_thread(self._writers, partial(self._objects.delete, _key(job_id, number)))

    async def delete_all(self, job_id: str) -> None:
        """Delete everything in a job's folder."""
        for entry in await _in_thread(self._readers, partial(self._objects.find, _folder(job_id))):
            await _in_thread(self._writers, partial(self._objects.delete, entry.key))


def _folder(job_id: str) -> str:
    # After quoting, only a name made of dots could leave the folder.
    name = quote(job_id, safe="")
    return f"logs/{name if name.strip('.') else name.replace('.', '%2E')}/"


def _key(job_id: str, number: int) -> str:
    return f"{_folder(job_id)}{number:08d}.log"


async def _in_thread(limiter: anyio.CapacityLimiter, call: Callable[[], _Result]) -> _Result:
    return await anyio.to_thread.run_sync(call, limiter=limiter)
