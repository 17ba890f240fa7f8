"""Reader of a job's log, from the object store and from memory, which follows the log while it grows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from mlplatform.errors import PlatformError
from mlplatform.gateway.logs.chunks import Chunks
from mlplatform.gateway.logs.job_log import JobLog

PATIENCE_SECONDS = 600.0
"""Limit of a following reader's wait for an unavailable store; a training waits as long."""

_RETRY_SECONDS = 1.0

_UNAVAILABLE = (PlatformError, OSError)


@dataclass(frozen=True)
class _Position:
    """A place in a log: a chunk's number and an offset in characters of its text."""

    number: int = 0
    offset: int = 0


@dataclass(frozen=True)
class _Part:
    """Text from a position on, and the position after it."""

    next: _Position
    text: str = field(default="", repr=False)
    gap: bool = False
    """Chunks just before `next` are omitted from the log."""


async def read(chunks: Chunks, job: JobLog, *, ended: bool, patience_s: float, skip: int = 0) -> AsyncIterator[str]:
    """Yield a log in parts of complete lines, from the beginning and then as it grows, until it is closed.

    Args:
        ended: the job has ended: end with the last line.
        patience_s: how long to wait for an unavailable store, per part.
        skip: lines to skip, omitted ones included.

    Raises:
        StorageError, UnreachableError, AccessError: the store was unavailable for longer than `patience_s`.
    """
    job.readers += 1
    try:
        position = _Position()
        while True:
            changed, done = job.changed, ended or job.closed or job.deleted
            part = await _part(chunks, job, position, patience_s)
            position = part.next
            if part.gap:
                skip -= job.omitted_lines
                if skip < 0 or not job.omitted_lines:
                    yield f"mlplatform: {job.omitted / (1 << 20):.1f} MiB of this log were omitted here.\n"
                skip = max(skip, 0)
            shown, skip = _without_lines(part.text, skip)
            if shown:
                yield shown
            if not part.text and not part.gap and position.number == job.number:
                if done:
                    return
                await changed.wait()
    finally:
        job.readers -= 1
        job.used = time.monotonic()


async def _part(chunks: Chunks, job: JobLog, position: _Position, patience_s: float) -> _Part:
    """Return the text from a position to the end of its chunk; retry while the store is unavailable."""
    number, deadline = position.number, time.monotonic() + patience_s
    while True:
        if number == job.number:
            text = job.text()[position.offset :]
            return _Part(_Position(number, position.offset + len(text)), text)
        if not job.has_chunk(number):
            return _Part(_Position(job.chunk_after(number)), gap=True)
        if (content := job.unsaved.get(number)) is None:
            try:
                content = await chunks.read(job.id, number)
            except _UNAVAILABLE:
                if job.deleted:
                    return _Part(_Position(job.number))
                omitted = not job.has_chunk(number)
                if not omitted and time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0 if omitted else _RETRY_SECONDS)
                continue
        return _Part(_Position(number + 1), content.split("\n", 1)[1][position.offset :])


def _without_lines(text: str, skip: int) -> tuple[str, int]:
    """Return the text without its first `skip` lines, and the number of lines still to skip."""
    if skip <= 0:
        return text, 0
    lines = text.count("\n")
    return ("", skip - lines) if lines <= skip else (text.split("\n", skip)[skip], 0)
