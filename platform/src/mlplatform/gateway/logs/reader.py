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


async def read(
    chunks: Chunks, job: JobLog, *, ended: bool, patience_s: float, skip: int = 0, stored: bool = False
) -> AsyncIterator[str]:
    """Yield a log in parts of complete lines, from the beginning and then as it grows, until it is closed.

    Args:
        ended: the job has ended: end with the last line.
        patience_s: how long to wait for an unavailable store, per part.
        skip: lines to skip, omitted ones included.
        stored: yield a line only after the store has it, unless the store rejects it.

    Raises:
        StorageError, UnreachableError, AccessError: the store was unavailable for longer than `patience_s`.
    """
    job.readers += 1
    try:
        position, line = _Position(), 0
        while True:
            waits = stored and job.unwritten > 0 and not job.rejected
            changed, done = job.changed, job.deleted or ((ended or job.closed) and not waits)
            part = await _part(chunks, job, position, patience_s, stored and not job.rejected)
            if part.gap:
                seen, line = max(line, skip), job.lines_before(part.next.number)
                if line > seen:
                    size = f"{job.omitted / (1 << 20):.1f} MiB"
                    yield f"mlplatform: {size} of this log ({line - seen} lines) were omitted here.\n"
            if shown := _without_lines(part.text, skip - line):
                yield shown
            line += part.text.count("\n")
            if part.next == position:
                if done:
                    return
                if waits:
                    job.hurry.set()
                await changed.wait()
            position = part.next
    finally:
        job.readers -= 1
        job.used = time.monotonic()


async def _part(chunks: Chunks, job: JobLog, position: _Position, patience_s: float, stored: bool) -> _Part:
    """Return the text from a position to the end of its chunk; retry while the store is unavailable."""
    number = position.number
    if number == job.number:
        text = (job.stored_text() if stored else job.text())[position.offset :]
        return _Part(_Position(number, position.offset + len(text)), text)
    if stored and number in job.unsaved:
        return _Part(position)
    content = await _content(chunks, job, number, patience_s) if job.has_chunk(number) else None
    if content is not None:
        return _Part(_Position(number + 1), content.split("\n", 1)[1][position.offset :])
    if job.deleted:
        return _Part(_Position(job.number))
    return _Part(_Position(job.chunk_after(number)), gap=True)


async def _content(chunks: Chunks, job: JobLog, number: int, patience_s: float) -> str | None:
    """Return a full chunk; None if it is omitted or its log is deleted."""
    deadline = time.monotonic() + patience_s
    while (content := job.unsaved.get(number)) is None:
        try:
            return await chunks.read(job.id, number)
        except _UNAVAILABLE:
            if job.deleted or not job.has_chunk(number):
                return None
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_RETRY_SECONDS)
    return content


def _without_lines(text: str, skip: int) -> str:
    """Return the text without its first `skip` lines."""
    return text if skip <= 0 else "".join(text.split("\n", skip)[skip:])
