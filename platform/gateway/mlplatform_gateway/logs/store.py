"""Job logs in the object store, written while they are printed and read from there.

A job's log is a series of objects `logs/<job id>/<number>.log`, each with one line of JSON and up to 256 KiB of text.
The JSON of the last object holds the offset up to which each file on a node was read. Text and offsets are written
together, so that a gateway killed at any moment neither loses nor repeats a line: shippers ask it where to continue.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mlplatform.storage.objects import ObjectStore
from mlplatform_gateway.errors import JobGoneError, LogsBusyError, UnknownJobError
from mlplatform_gateway.logs.chunks import Chunks, LogWriter
from mlplatform_gateway.logs.following import PATIENCE_SECONDS, read
from mlplatform_gateway.logs.job_log import JobLog
from mlplatform_gateway.logs.lines import NO_JOB, LogName, job_in, log_name
from mlplatform_gateway.logs.passes import Passes

_CACHED = 10_000


Resolve = Callable[[str | None, str | None], Awaitable[str | None]]
"""Returns the id of the job of a driver (by Ray's submission id) or a worker (by Ray's job id), if it is known."""
LIMIT_BYTES = 16 << 20
CHUNK_BYTES = 256 << 10
_JOB_UNWRITTEN = 8 << 20
_ALL_UNWRITTEN = 64 << 20
_KEEP_SECONDS = 60.0
_PARTIAL_LINE_SECONDS = 600.0


class Owners:
    """Cache of the jobs of log files."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._job_ids: dict[str, str] = {}
        self._named: dict[tuple[str, str, str], str] = {}
        """Ray's job id that a worker's log names in its first line, by node, session and file."""

    async def job_id(self, node: str, session: str, name: LogName, offset: int, body: bytes) -> str:
        """Return the id of the job of a file, given bytes of it from `offset` on.

        Raises:
            UnknownJobError, JobGoneError: no job is known for the file, or the job was deleted.
        """
        ray_job = name.ray_job
        if ray_job == NO_JOB:
            file = (node, session, name.file)
            named = (job_in(body) if offset == 0 else None) or self._named.get(file)
            if named is None:
                raise UnknownJobError(f"{name.file!r} has not named its job; try again later, with its beginning.")
            _remember(self._named, file, ray_job := named)
        key = name.ray_id or f"{session}/{ray_job}"
        if key not in self._job_ids:
            job_id = await self._resolve(name.ray_id, ray_job)
            if job_id is None:
                raise UnknownJobError(f"No job is known for {name.file!r}; try again later.")
            _remember(self._job_ids, key, job_id)
        return self._job_ids[key]

    def forget_number(self, session: str, ray_job: str) -> None:
        """Forget the job of one of Ray's job ids in a session."""
        self._job_ids.pop(f"{session}/{ray_job}", None)

    def forget(self, job_id: str) -> None:
        """Forget which files belong to a job."""
        self._job_ids = {key: known for key, known in self._job_ids.items() if known != job_id}


def _remember(known: dict[Any, str], key: Any, value: str) -> None:
    """Add to a cache; a full one is cleared, because every entry can be looked up again."""
    if len(known) >= _CACHED:
        known.clear()
    known[key] = value


@dataclass(frozen=True)
class Accepted:
    """Answer to bytes of a file.

    Attributes:
        expected: offset at which the file continues.
        at_offset: whether the bytes began where the file continued until then.
    """

    expected: int
    at_offset: bool


class JobLogs:
    """The logs of all jobs; one instance per process, with `run` as a background task.

    Every method that reads or extends a log raises StorageError, UnreachableError or AccessError while the store is
    unavailable, so that the log cannot be loaded, except `close` and `forget`.

    Args:
        objects: where logs are stored.
        resolve: finds the job of a file.
        limit_bytes: limit of one job's log; its first quarter and its end remain, the middle is omitted.
        chunk_bytes: size of one object, exceeded by one line at most.
    """

    def __init__(
        self, objects: ObjectStore, resolve: Resolve, *, limit_bytes: int = LIMIT_BYTES, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self.instance = uuid.uuid4().hex
        """Id of this start of the gateway; a shipper that sees a new one queries all offsets again."""
        self._limit, self._chunk_bytes = limit_bytes, chunk_bytes
        self._chunks = Chunks(objects)
        self._owners = Owners(resolve)
        self.passes = Passes()
        """Passes of the shippers, and the ends of jobs that wait for one."""
        self._writer = LogWriter(self._chunks)
        self._jobs: dict[str, JobLog] = {}
        self.accepted_bytes = 0
        """Bytes of lines that were accepted since the start of this process."""
        self.starts: Counter[bool] = Counter()
        """Programs of jobs' entry points by how they have started since then, True for warm."""

    async def accept(
        self,
        node: str,
        session: str,
        file: str,
        offset: int,
        inode: int,
        body: bytes,
        *,
        restart: int | None = None,
        more: bool = False,
    ) -> Accepted:
        """Accept bytes of a node's file from `offset` on.

        Nothing is accepted if the file continues elsewhere. An incomplete line is not accepted, but kept for `settle`.

        Args:
            restart: the file was rewritten and is shorter than these bytes, which were accepted of it: begin at 0.
                With any other number nothing happens, so that a late request does no harm.
            more: the file continues after the body, so that a last line without its end is not partial.

        Raises:
            UnknownJobError, JobGoneError: no job is known for the file, or it was deleted.
            LogsBusyError: too many bytes wait for the store.
        """
        name = log_name(file)
        if name is None:
            raise UnknownJobError(f"{file!r} is not the log of a driver or a worker; send only those.")
        job = await self._job(await self._owners.job_id(node, session, name, offset, body))
        if job.deleted:
            raise JobGoneError(f"The job of {file!r} was deleted; do not send it again.")
        self._check_session(job, session, name)
        known = job.files.get(f"{node}/{session}/{name.file}")
        expected = known.offsets.get(inode, 0) if known else 0
        if known and restart is not None and restart == expected:
            known.move(inode, expected := 0)
        if offset != expected or not body:
            return Accepted(expected, at_offset=offset == expected)
        if job.unwritten > _JOB_UNWRITTEN or sum(job.unwritten for job in self._jobs.values()) > _ALL_UNWRITTEN:
            raise LogsBusyError("The log store is unavailable and the buffer is full; send this again in a second.")
        expected = job.accept(job.file(node, session, name.file), inode, offset, body, more)
        self.accepted_bytes += expected - offset
        self._writer.changed(job)
        return Accepted(expected, at_offset=True)

    def _check_session(self, job: JobLog, session: str, name: LogName) -> None:
        """Raise UnknownJobError for a worker's file in a session in which no driver of the job has printed."""
        if name.ray_job and session not in job.sessions:
            # Ray restarts its job numbers in a new cluster, so the number alone could be another job's of days ago.
            # The cached number may also be a stale one, looked up before its driver was known.
            self._owners.forget_number(session, name.ray_job)
            raise UnknownJobError(f"No driver has printed in {session!r} yet for {name.file!r}; try again later.")

    async def note(self, job_id: str, text: str) -> None:
        """Add lines of the gateway's own."""
        job = await self._job(job_id)
        for line in text.splitlines():
            job.append(line)
        self._writer.changed(job)

    async def settle(self, job_id: str, node: str | None, since: float, timeout_s: float = 10) -> bool:
        """Wait for everything that was printed until `since` (Unix seconds), incomplete lines included.

        Args:
            node: the driver's node, which may not have printed yet; None if it is not known. Nodes on which the job
                has printed are waited for too, except those whose shipper has not reported for 10 s.

        Returns:
            False if a node's shipper has not reported in time; the log then has what arrived.
        """
        job = await self._job(job_id)
        nodes = {file.source.node for file in job.files.values() if self.passes.is_live(file.source.node)}
        nodes |= {node} if node else set()
        settled = await self.passes.wait(nodes, since, timeout_s)
        job = await self._job(job_id)
        job.flush_partial_lines(nodes)
        self._writer.changed(job)
        return settled

    async def close(self, job_id: str) -> None:
        """End the log of an ended job: its readers come to an end, and it is written if the store is available."""
        job = self._jobs.get(job_id)
        if job is None or not job.loaded or job.closed:
            return
        job.flush_partial_lines()
        job.closed = True
        self._writer.changed(job)
        await self._writer.flush([job])

    async def reopen(self, job_id: str, text: str) -> None:
        """Let the log of an ended job grow again, and add lines of the gateway's own."""
        (await self._job(job_id)).closed = False
        await self.note(job_id, text)

    async def text(self, job_id: str) -> str:
        """Return the whole log, at its end the lines that are not complete yet."""
        job = await self._job(job_id)
        text = "".join([part async for part in read(self._chunks, job, ended=True, patience_s=0)])
        return text + "\n".join(line for _, line in job.unfinished())

    async def follow(
        self, job_id: str, skip_lines: int = 0, *, ended: bool = False, stored: bool = False, unfinished: bool = False
    ) -> AsyncIterator[str]:
        """Yield the log in parts of complete lines, from the beginning and then as it grows, until `close`.

        Waits up to 10 minutes for an unavailable store.

        Args:
            skip_lines: lines to skip. Omitted lines count; the line that stands for them has their number.
            ended: the job has ended: end with the last line.
            stored: yield a line only after the store has it, 0.1 s and a write later at most, or has rejected it. The
                number of lines read is then a position in the log that outlives a crash of the gateway.
            unfinished: yield unfinished lines as well (see `following.read`).

        Raises:
            StorageError, UnreachableError, AccessError: the store was unavailable for too long.
        """
        job, how = await self._job(job_id), {"ended": ended, "stored": stored, "unfinished": unfinished}
        async for part in read(self._chunks, job, patience_s=PATIENCE_SECONDS, skip=skip_lines, **how):
            yield part

    async def delete(self, job_id: str) -> None:
        """Delete a job's log; its readers come to an end.

        Raises:
            StorageError, UnreachableError, AccessError: the store is unavailable; call it again.
        """
        job = self._jobs.setdefault(job_id, self._new(job_id))
        job.deleted = True
        job.announce()
        self._owners.forget(job_id)
        try:
            async with job.loading, job.writing:
                await self._chunks.delete_all(job_id)
        finally:
            if self._jobs.get(job_id) is job:
                del self._jobs[job_id]

    def forget(self, job_id: str) -> None:
        """Drop lines that arrived while a job's log was deleted, so that they do not reach the next job with its id."""
        self._owners.forget(job_id)
        if job := self._jobs.pop(job_id, None):
            job.deleted = True
            job.announce()

    async def flush(self) -> None:
        """Write everything that the store accepts within 5 s; for the end of the process."""
        await self._writer.flush(list(self._jobs.values()))

    async def run(self) -> None:
        """Write changed logs, each at most once per second, and evict idle ones from memory; never returns."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._evict())
            group.create_task(self._writer.run())

    def _new(self, job_id: str) -> JobLog:
        return JobLog(job_id, self._limit, self._chunk_bytes, self.starts)

    async def _job(self, job_id: str) -> JobLog:
        """Return a job's log, loaded from the store if necessary."""
        job = self._jobs.setdefault(job_id, self._new(job_id)) if job_id not in self._jobs else self._jobs[job_id]
        job.used = time.monotonic()
        if not job.loaded:
            async with job.loading:
                if not job.loaded and not job.deleted:
                    await self._load(job)
        return job

    async def _load(self, job: JobLog) -> None:
        if numbers := await self._chunks.numbers(job.id):
            job.restore(numbers[-1], await self._chunks.read(job.id, numbers[-1]))
            # A gateway was killed after it omitted chunks and before it deleted them.
            job.obsolete = sorted(set(numbers[:-1]) - {chunk.number for chunk in job.chunks})
        job.loaded = True

    async def _evict(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_SECONDS / 6)
            for job in list(self._jobs.values()):
                idle = time.monotonic() - job.used
                busy = job.readers or job.queued or job.loading.locked() or job.writing.locked()
                if busy or idle < _KEEP_SECONDS:
                    continue
                if any(file.partial for file in job.files.values()):
                    # A shipper repeats partial lines for a restarted gateway, not for one that has evicted the log.
                    if job.closed or idle > _PARTIAL_LINE_SECONDS:
                        job.flush_partial_lines()
                        self._writer.changed(job)
                    continue
                del self._jobs[job.id]
