"""Reading of a job's log, from the object store and from memory, following it while it grows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field

from mlplatform.errors import PlatformError
from mlplatform_gateway.logs.chunks import Chunks
from mlplatform_gateway.logs.job_log import JobLog

PATIENCE_SECONDS = 600.0
"""Limit of a follower's wait for an unavailable store; a training waits as long."""

_RETRY_SECONDS = 1.0

_REDRAW_SECONDS = 1.0
"""Pause between two states of unfinished lines."""

_STALE_SECONDS = 60.0
"""Age from which an unfinished line that other lines have overwritten is not shown again."""


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


class _Unfinished:
    """Unfinished lines as a follower sees them: one at a time, at the place where the next line begins."""

    def __init__(self, job: JobLog, *, shown: bool) -> None:
        self._job = job
        self._active = shown
        self._shown = ""
        self._seen = self._due = 0.0
        self._waits_since: float | None = None

    def replaced_by(self, text: str) -> str:
        """Return what shows a text in place of the present line, on a terminal and in a file."""
        shown, self._shown = self._shown, ""
        return text[len(shown) :] if text.startswith(shown) else f"\r{' ' * len(shown)}\r{text}"

    def news(self, *, waits: bool, done: bool) -> str:
        """Return what shows the lines that have changed, each in place of the one before.

        Args:
            waits: complete lines are about to follow, which come first unless that takes too long.
            done: no lines follow.
        """
        now, lines = time.monotonic(), self._job.unfinished() if self._active and not done else []
        self._waits_since = (self._waits_since or now) if waits else None
        changed = [line for line in lines if line[0] > self._seen]
        if not self._shown and not changed:
            changed = [line for line in lines[-1:] if line[0] > now - _STALE_SECONDS]
        if not lines and not waits:
            return self.replaced_by("")
        if not changed or now < max(self._due, (self._waits_since or 0.0) + _REDRAW_SECONDS * waits):
            return ""
        self._seen, self._due = changed[-1][0], now + _REDRAW_SECONDS
        news = ""
        for _, text in changed:
            news += self.replaced_by(text)
            self._shown = text
        return news

    async def wait(self, changed: asyncio.Event, *, hurry: bool) -> None:
        """Wait for a change of the log, or until news may be due.

        Args:
            hurry: let the log be written now.
        """
        if hurry:
            self._job.hurry.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(_REDRAW_SECONDS if self._active and self._job.unfinished() else None):
                await changed.wait()


async def read(
    chunks: Chunks,
    job: JobLog,
    *,
    ended: bool,
    patience_s: float,
    skip: int = 0,
    stored: bool = False,
    unfinished: bool = False,
) -> AsyncIterator[str]:
    """Yield a log in parts of complete lines, from the beginning and then as it grows, until it is closed.

    Args:
        ended: the job has ended: end with the last line.
        patience_s: how long to wait for an unavailable store, per part.
        skip: lines to skip, omitted ones included.
        stored: yield a line only after the store has it, unless the store rejects it.
        unfinished: yield unfinished lines as well, without a line feed and once per second at most. What follows
            begins with a carriage return, unless it continues the line.

    Raises:
        StorageError, UnreachableError, AccessError: the store was unavailable for longer than `patience_s`.
    """
    job.readers += 1
    present = _Unfinished(job, shown=unfinished)
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
                    omitted = f"mlplatform: {size} of this log ({line - seen} lines) were omitted here.\n"
                    yield present.replaced_by(omitted)
            if shown := _without_lines(part.text, skip - line):
                yield present.replaced_by(shown)
            line += part.text.count("\n")
            if part.next == position:
                if news := present.news(waits=waits, done=done):
                    yield news
                if done:
                    return
                await present.wait(changed, hurry=waits)
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
        except (PlatformError, OSError):
            if job.deleted or not job.has_chunk(number):
                return None
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_RETRY_SECONDS)
    return content


def _without_lines(text: str, skip: int) -> str:
    """Return the text without its first `skip` lines."""
    return text if skip <= 0 else "".join(text.split("\n", skip)[skip:])
