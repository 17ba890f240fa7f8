"""What jobs print, kept in the object store while it is written, and read from there.

A job's log is a row of objects `logs/<job id>/<number>.log`, each of a line of JSON and up to 256 KiB of text. The
JSON of the last one says how far each file on a node has been taken. Text and offsets come in one write, so that a
gateway killed at any moment neither loses nor doubles a line: the carriers ask it where to go on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import anyio.to_thread

from mlplatform.errors import PlatformError
from mlplatform.gateway.errors import JobGoneError, LogsBusyError, UnknownJobError
from mlplatform.gateway.logs.lines import NO_JOB, LogName, Speaker, job_in, log_name, split
from mlplatform.storage.objects import Store

LIMIT_BYTES = 16 << 20

CHUNK_BYTES = 256 << 10

GENERATIONS = 8
"""Rotated files of one name whose offsets are remembered; Ray keeps 5 at most (RAY_ROTATION_BACKUP_COUNT)."""

_JOB_UNWRITTEN = 8 << 20

_ALL_UNWRITTEN = 64 << 20

_WRITE_SECONDS = 1.0

_CLOSE_SECONDS = 5.0

_SILENT_SECONDS = 10.0

_KEEP_SECONDS = 60.0

_HALF_LINE_SECONDS = 600.0

_PATIENCE_SECONDS = 600.0
"""How long a reader that follows waits for a store that is away, as long as a training does."""

_WARN_SECONDS = 30.0

_CACHED = 10_000

_AWAY = (PlatformError, OSError)

_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)


class Resolve(Protocol):
    """Finds the job that a driver (Ray's submission id) or a worker (Ray's hexadecimal job id) belongs to."""

    async def __call__(self, ray_submission_id: str | None, ray_job_id: str | None) -> str | None: ...


@dataclass
class _Source:
    """A log file on a node, with those that it was rotated to."""

    speaker: Speaker
    offsets: dict[int, int] = field(default_factory=dict)
    """Bytes taken, by inode; the oldest first."""

    halves: dict[int, bytes] = field(default_factory=dict)
    """What follows the bytes taken and is no whole line yet, by inode."""

    def move(self, inode: int, offset: int) -> None:
        """Remember where to go on; what stood behind is no half line any more."""
        self.halves.pop(inode, None)
        self.offsets[inode] = offset
        while len(self.offsets) > GENERATIONS:
            oldest = next(iter(self.offsets))
            del self.offsets[oldest]
            self.halves.pop(oldest, None)


@dataclass
class _Chunk:
    """A full part of a log; the store has it, or will."""

    number: int
    size: int
    lines: int


class _Job:
    """A job's log: full chunks in the store or on their way to it, and the last one in memory."""

    def __init__(self, job_id: str, limit: int, chunk_bytes: int) -> None:
        self.id = job_id
        self.loaded = self.closed = self.deleted = False
        self.sources: dict[str, _Source] = {}
        self.sessions: set[str] = set()
        """Those of Ray in which a driver of this job has printed."""
        self.chunks: list[_Chunk] = []
        self.number = self.size = self.lines = 0
        self.left_out = self.left_out_lines = 0
        self.unsaved: dict[int, str] = {}
        """Full chunks that the store does not have yet, as they will stand there, in order."""
        self.doomed: list[int] = []
        """Chunks that are left out of the log and still lie in the store."""
        self.followers = 0
        self.used = time.monotonic()
        self.loading, self.writing = asyncio.Lock(), asyncio.Lock()
        self.kept = False
        self.changed, self.saved, self.hurry = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._pieces: list[str] = []
        self._version = self._saved_version = self._saved_size = 0
        self._limit, self._chunk_bytes = limit, chunk_bytes

    @property
    def dirty(self) -> bool:
        """Whether the last chunk is not in the store as it is."""
        return self._version != self._saved_version

    @property
    def unwritten(self) -> int:
        """Bytes that the store does not have yet."""
        return sum(map(len, self.unsaved.values())) + self.size - self._saved_size

    def text(self) -> str:
        """The text of the last chunk."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def object(self) -> str:
        """The last chunk as it stands in the store."""
        header = {
            "chunks": [[chunk.number, chunk.size, chunk.lines] for chunk in self.chunks],
            "left_out": [self.left_out, self.left_out_lines],
            "sources": {
                key: {"offsets": list(source.offsets.items()), **source.speaker.state()}
                for key, source in self.sources.items()
            },
        }
        return f"{json.dumps(header)}\n{self.text()}"

    def restore(self, number: int, content: str) -> None:
        """Go on from the last chunk in the store."""
        first, text = content.split("\n", 1)
        header = json.loads(first)
        self.chunks = [_Chunk(*chunk) for chunk in header["chunks"]]
        self.left_out, self.left_out_lines = header["left_out"]
        for key, state in header["sources"].items():
            source = self.source(*key.split("/"))
            source.offsets = dict(state.pop("offsets"))
            source.speaker.actor, source.speaker.task = state.get("actor", ""), state.get("task", "")
        self.number, self._pieces = number, [text]
        self.size, self.lines = len(text.encode()), text.count("\n")
        self._saved_size = self.size

    def source(self, node: str, session: str, file: str) -> _Source:
        """The file of this name, known or new."""
        key = f"{node}/{session}/{file}"
        if key not in self.sources:
            name = log_name(file) or LogName(file)
            self.sources[key] = _Source(Speaker(node, name, self.id))
            if name.ray_id:
                self.sessions.add(session)
        return self.sources[key]

    def take(self, source: _Source, inode: int, offset: int, body: bytes, more: bool) -> int:
        """Take the whole lines of a file's bytes from `offset`; returns where to go on."""
        end = 0
        for raw, end in split(body):
            self._take_line(source, inode, raw, offset + end)
        if end < len(body) and not more:
            source.offsets.setdefault(inode, offset)
            source.halves[inode] = body[end:]
        return offset + end

    def end_half_lines(self, nodes: set[str] | None = None) -> None:
        """Take what the files of some nodes, or all of them, end with, though the line has no end."""
        for source in self.sources.values():
            if nodes is not None and source.speaker.node not in nodes:
                continue
            for inode, half in list(source.halves.items()):
                self._take_line(source, inode, half, source.offsets.get(inode, 0) + len(half))

    def append(self, line: str) -> None:
        """Add a line to the last chunk."""
        self._pieces.append(f"{line}\n")
        self.size += len(line.encode()) + 1
        self.lines += 1
        self._version += 1

    def written(self, version: int, number: int, size: int) -> None:
        """The store has the last chunk as it was then."""
        self._saved_version = version
        if number == self.number:
            self._saved_size = size

    def state(self) -> tuple[int, int, int]:
        """What `written` wants to be told."""
        return self._version, self.number, self.size

    def announce(self) -> None:
        """Wake those that follow."""
        self.changed.set()
        self.changed = asyncio.Event()

    def _take_line(self, source: _Source, inode: int, raw: bytes, end: int) -> None:
        """Add a line of a file, and remember that the file is taken up to `end`."""
        line = source.speaker.say(raw)
        source.move(inode, end)
        self._version += 1
        if line is not None:
            self.append(line)
            # Here, and not after the request: what a chunk's header says of the files has to fit its text.
            if self.size >= self._chunk_bytes:
                self._seal()

    def _seal(self) -> None:
        self.unsaved[self.number] = self.object()
        self.chunks.append(_Chunk(self.number, self.size, self.lines))
        self.number += 1
        self.size = self.lines = self._saved_size = 0
        self._pieces = []
        self._version += 1
        self._leave_out()

    def _leave_out(self) -> None:
        """Take chunks out of the middle: the first quarter of the limit stays, and the end."""
        head, first = 0, 0
        while first < len(self.chunks) and head + self.chunks[first].size <= self._limit // 4:
            head += self.chunks[first].size
            first += 1
        while first < len(self.chunks) - 1 and sum(chunk.size for chunk in self.chunks) > self._limit:
            chunk = self.chunks.pop(first)
            self.left_out += chunk.size
            self.left_out_lines += chunk.lines
            self.doomed.append(chunk.number)


class JobLogs:
    """The logs of all jobs; one process has one, and `run` has to run beside it."""

    def __init__(
        self, files: Store, resolve: Resolve, *, limit_bytes: int = LIMIT_BYTES, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        """
        Args:
            files: where logs are kept.
            resolve: tells the job of a file; None for a job that is not known (yet), JobGoneError for one that is gone.
            limit_bytes: of one job's log; its first quarter stays and its end, the middle is left out.
            chunk_bytes: of one object, at most one line more.
        """
        self.instance = uuid.uuid4().hex
        """Changes with each start of the gateway; a carrier that sees another one asks for all offsets anew."""
        self._files = files
        self._resolve = resolve
        self._limit, self._chunk_bytes = limit_bytes, chunk_bytes
        self._jobs: dict[str, _Job] = {}
        self._job_ids: dict[str, str] = {}
        self._named: dict[tuple[str, str, str], str] = {}
        self._due: asyncio.Queue[_Job] = asyncio.Queue()
        self._started = time.time()
        self._passes: dict[str, float] = {}
        self._passed = asyncio.Event()
        self._wanted: list[tuple[str, float]] = []
        self._warned = float("-inf")
        self._readers, self._writers = anyio.CapacityLimiter(16), anyio.CapacityLimiter(8)

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
    ) -> int:
        """Take what a file on a node has from `offset` on; returns the offset at which it is to go on.

        Nothing is taken where that is not `offset`. A line without its end is not taken, but known to `settle`.

        Args:
            restart: the file was written anew and is shorter than these bytes, which were taken of it: begin at 0.
                Where another number was taken, nothing happens, so that a request that comes late does no harm.
            more: the file goes on behind the body, so that a last line without its end is none to settle.

        Raises:
            UnknownJobError, JobGoneError: no job is known for the file, or no more.
            LogsBusyError: too much waits for the store.
            StorageError, UnreachableError, AccessError: the store is away, so that the job's log cannot be looked up.
        """
        name = log_name(file)
        if name is None:
            raise UnknownJobError(f"{file!r} is no log of a driver or a worker; send only those.")
        job = await self._job(await self._job_id(node, session, name, offset, body))
        if job.deleted:
            raise JobGoneError(f"The job of {file!r} was deleted; send no more of it.")
        if name.ray_job and session not in job.sessions:
            # Ray counts jobs anew in a new cluster, so that its number alone could be another job's of days ago.
            # The number that was remembered may be such a one too, asked for before its driver was known.
            self._job_ids.pop(f"{session}/{name.ray_job}", None)
            raise UnknownJobError(f"No driver has printed in {session!r} yet for {file!r}; ask again later.")
        known = job.sources.get(f"{node}/{session}/{name.file}")
        expected = known.offsets.get(inode, 0) if known else 0
        if known and restart is not None and restart == expected:
            known.move(inode, expected := 0)
        if offset != expected or not body:
            return expected
        if job.unwritten > _JOB_UNWRITTEN or sum(job.unwritten for job in self._jobs.values()) > _ALL_UNWRITTEN:
            raise LogsBusyError("The store of logs is away and too much waits for it; send this again in a second.")
        expected = job.take(job.source(node, session, name.file), inode, offset, body, more)
        self._has_changed(job)
        return expected

    async def passed(self, node: str, started: float) -> bool:
        """A carrier has sent all that the node's files of known jobs had at `started` (Unix seconds).

        Returns:
            Whether someone waits for a later moment, so that it should look again at once, at unknown files too.
        """
        self._passes[node] = max(started, self._passes.get(node, started))
        self._passed.set()
        self._passed = asyncio.Event()
        return any(name == node and since > started for name, since in self._wanted)

    async def note(self, job_id: str, text: str) -> None:
        """Add a line of the gateway's own.

        Raises:
            StorageError, UnreachableError, AccessError: the store is away, so that the log cannot be looked up.
        """
        job = await self._job(job_id)
        for line in text.splitlines():
            job.append(line)
        self._has_changed(job)

    async def settle(self, job_id: str, node: str | None, since: float, timeout_s: float = 10) -> bool:
        """Wait until everything is here that was printed until `since` (Unix seconds), lines without end included.

        Args:
            node: of the driver, which may not have printed yet; None where it is not known. Nodes that the job has
                printed on are waited for too, less those whose carrier has not reported for 10 s.

        Returns:
            False when a node's carrier has not said so in time; then what is here is all there is.

        Raises:
            StorageError, UnreachableError, AccessError: the store is away, so that the log cannot be looked up.
        """
        job = await self._job(job_id)
        recently = time.time() - _SILENT_SECONDS
        nodes = {source.speaker.node for source in job.sources.values()}
        nodes = {name for name in nodes if self._passes.get(name, self._started) > recently} | (
            {node} if node else set()
        )
        wanted = [(name, since) for name in nodes]
        self._wanted += wanted
        try:
            async with asyncio.timeout(timeout_s):
                while not all(self._passes.get(name, 0.0) >= since for name in nodes):
                    await self._passed.wait()
            settled = True
        except TimeoutError:
            settled = False
        finally:
            for item in wanted:
                self._wanted.remove(item)
        job = await self._job(job_id)
        job.end_half_lines(nodes)
        self._has_changed(job)
        return settled

    async def close(self, job_id: str) -> None:
        """The job has ended: those that follow come to an end, and the store has all of it unless it is away."""
        job = self._jobs.get(job_id)
        if job is None or not job.loaded or job.closed:
            return
        job.end_half_lines()
        job.closed = True
        self._has_changed(job)
        await self._saved([job])

    async def text(self, job_id: str) -> str:
        """The whole log.

        Raises:
            StorageError, UnreachableError, AccessError: the store is away.
        """
        return "".join([part async for part in self._read(job_id, ended=True, patience_s=0)])

    async def follow(self, job_id: str, skip_lines: int = 0, *, ended: bool = False) -> AsyncIterator[str]:
        """The log in parts of whole lines, from the beginning and then as it grows, until `close`.

        A store that is away is waited for, up to ten minutes.

        Args:
            skip_lines: lines that are not wanted again; those that were left out since count, the one that says so
                does not.
            ended: the job has ended already: give what there is.

        Raises:
            StorageError, UnreachableError, AccessError: the store is away for too long.
        """
        async for part in self._read(job_id, ended=ended, patience_s=_PATIENCE_SECONDS, skip=skip_lines):
            yield part

    async def delete(self, job_id: str) -> None:
        """Remove a job's log; those that follow it come to an end.

        Raises:
            StorageError, UnreachableError, AccessError: the store is away; call it again.
        """
        job = self._jobs.setdefault(job_id, self._new(job_id))
        job.deleted = True
        job.announce()
        self._job_ids = {key: known for key, known in self._job_ids.items() if known != job_id}
        try:
            async with job.loading, job.writing:
                for entry in await self._in_thread(self._readers, partial(self._files.find, _folder(job_id))):
                    await self._in_thread(self._writers, partial(self._files.delete, entry.key))
        finally:
            if self._jobs.get(job_id) is job:
                del self._jobs[job_id]

    def forget(self, job_id: str) -> None:
        """Let nothing that was on its way while a job's log was deleted reach the next job of its id."""
        self._job_ids = {key: known for key, known in self._job_ids.items() if known != job_id}
        if job := self._jobs.pop(job_id, None):
            job.deleted = True
            job.announce()

    async def flush(self) -> None:
        """Bring everything to the store, as far as it takes it within 5 s; for the end of the process."""
        await self._saved(list(self._jobs.values()))

    async def run(self) -> None:
        """Write what has changed, each job's at most once a second, and forget what is not used; never returns."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._forget())
            while True:
                group.create_task(self._keep(await self._due.get()))

    def _new(self, job_id: str) -> _Job:
        return _Job(job_id, self._limit, self._chunk_bytes)

    async def _job_id(self, node: str, session: str, name: LogName, offset: int, body: bytes) -> str:
        ray_job = name.ray_job
        if ray_job == NO_JOB:
            file = (node, session, name.file)
            named = (job_in(body) if offset == 0 else None) or self._named.get(file)
            if named is None:
                raise UnknownJobError(f"{name.file!r} has not named its job; ask again later, with its beginning.")
            _remember(self._named, file, ray_job := named)
        key = name.ray_id or f"{session}/{ray_job}"
        if key not in self._job_ids:
            job_id = await self._resolve(name.ray_id, ray_job)
            if job_id is None:
                raise UnknownJobError(f"No job is known for {name.file!r}; ask again later.")
            _remember(self._job_ids, key, job_id)
        return self._job_ids[key]

    async def _job(self, job_id: str) -> _Job:
        """A job's log in memory, loaded from the store if need be."""
        job = self._jobs.setdefault(job_id, self._new(job_id)) if job_id not in self._jobs else self._jobs[job_id]
        job.used = time.monotonic()
        if not job.loaded:
            async with job.loading:
                if not job.loaded and not job.deleted:
                    await self._load(job)
        return job

    async def _load(self, job: _Job) -> None:
        entries = await self._in_thread(self._readers, partial(self._files.find, _folder(job.id)))
        names = (entry.key.rsplit("/", 1)[1].removesuffix(".log") for entry in entries)
        numbers = sorted(int(name) for name in names if name.isdecimal())
        if numbers:
            key = _key(job.id, numbers[-1])
            job.restore(numbers[-1], await self._in_thread(self._readers, partial(self._files.read, key)))
            # A gateway killed between leaving chunks out and deleting them.
            job.doomed = sorted(set(numbers[:-1]) - {chunk.number for chunk in job.chunks})
        job.loaded = True

    async def _read(self, job_id: str, *, ended: bool, patience_s: float, skip: int = 0) -> AsyncIterator[str]:
        job = await self._job(job_id)
        job.followers += 1
        try:
            number = place = 0
            while True:
                changed, done = job.changed, ended or job.closed or job.deleted
                text, number, place, gap = await self._part(job, number, place, patience_s)
                if gap:
                    skip -= job.left_out_lines
                    if skip < 0 or not job.left_out_lines:
                        yield f"mlplatform: {job.left_out / (1 << 20):.1f} MiB of this log are left out here.\n"
                    skip = max(skip, 0)
                shown, skip = _after(text, skip)
                if shown:
                    yield shown
                if not text and not gap and number == job.number:
                    if done:
                        return
                    await changed.wait()
        finally:
            job.followers -= 1
            job.used = time.monotonic()

    async def _part(self, job: _Job, number: int, place: int, patience_s: float) -> tuple[str, int, int, bool]:
        """What follows a place in a chunk, the place behind it, and whether chunks were left out just before it."""
        deadline = time.monotonic() + patience_s
        while True:
            if number == job.number:
                text = job.text()[place:]
                return text, number, place + len(text), False
            if not any(chunk.number == number for chunk in job.chunks):
                following = [chunk.number for chunk in job.chunks if chunk.number > number]
                return "", following[0] if following else job.number, 0, True
            if (content := job.unsaved.get(number)) is None:
                try:
                    key = _key(job.id, number)
                    content = await self._in_thread(self._readers, partial(self._files.read, key))
                except _AWAY:
                    left_out = not any(chunk.number == number for chunk in job.chunks)
                    if job.deleted:
                        return "", job.number, 0, False
                    if not left_out and time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(0 if left_out else _WRITE_SECONDS)
                    continue
            return content.split("\n", 1)[1][place:], number + 1, 0, False

    def _has_changed(self, job: _Job) -> None:
        job.used = time.monotonic()
        job.announce()
        if (job.dirty or job.unsaved) and not job.kept and not job.deleted:
            job.kept = True
            self._due.put_nowait(job)

    async def _keep(self, job: _Job) -> None:
        """Write a job's changes until there are none, again and again while the store is away."""
        while (job.dirty or job.unsaved or job.doomed) and not job.deleted:
            try:
                await self._write(job)
            except Exception as error:
                self._warn(error)
                await asyncio.sleep(_WRITE_SECONDS)
                continue
            if not job.dirty and not job.unsaved:
                job.saved.set()
            try:
                async with asyncio.timeout(_WRITE_SECONDS):
                    await job.hurry.wait()
                job.hurry.clear()
            except TimeoutError:
                pass
        job.kept = False
        job.saved.set()

    async def _write(self, job: _Job) -> None:
        async with job.writing:
            while job.unsaved and not job.deleted:
                number = next(iter(job.unsaved))
                await self._in_thread(
                    self._writers, partial(self._files.write, _key(job.id, number), job.unsaved[number])
                )
                del job.unsaved[number]
            if job.deleted:
                return
            doomed, state = list(job.doomed), job.state()
            await self._in_thread(self._writers, partial(self._files.write, _key(job.id, job.number), job.object()))
            job.written(*state)
            # Only now does no chunk in the store name them any more.
            for number in doomed:
                await self._in_thread(self._writers, partial(self._files.delete, _key(job.id, number)))
                job.doomed.remove(number)

    async def _saved(self, jobs: list[_Job]) -> None:
        """Wait until the store has the jobs' logs, at most 5 s."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                for job in jobs:
                    while (job.dirty or job.unsaved) and not job.deleted:
                        job.saved.clear()
                        job.hurry.set()
                        await job.saved.wait()
        except TimeoutError:
            _log.warning("The store of logs is away; what it does not have yet is kept in memory and on the nodes.")

    async def _forget(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_SECONDS / 6)
            for job in list(self._jobs.values()):
                idle = time.monotonic() - job.used
                busy = job.followers or job.kept or job.loading.locked() or job.writing.locked()
                if busy or idle < _KEEP_SECONDS:
                    continue
                if any(source.halves for source in job.sources.values()):
                    # A restarted gateway is told of them again, one that has only forgotten the job is not.
                    if job.closed or idle > _HALF_LINE_SECONDS:
                        job.end_half_lines()
                        self._has_changed(job)
                    continue
                del self._jobs[job.id]

    async def _in_thread(self, limiter: anyio.CapacityLimiter, call: Callable[[], _Result]) -> _Result:
        return await anyio.to_thread.run_sync(call, limiter=limiter)

    def _warn(self, error: Exception) -> None:
        if time.monotonic() - self._warned > _WARN_SECONDS:
            self._warned = time.monotonic()
            _log.warning("The store of logs does not take them, they wait: %s", error)


def _folder(job_id: str) -> str:
    # Only names made of dots are left that a folder could take for a way out of it.
    name = quote(job_id, safe="")
    return f"logs/{name if name.strip('.') else name.replace('.', '%2E')}/"


def _key(job_id: str, number: int) -> str:
    return f"{_folder(job_id)}{number:08d}.log"


def _remember(known: dict[Any, str], key: Any, value: str) -> None:
    """Add to a cache; a full one is emptied, for everything in it can be asked for again."""
    if len(known) >= _CACHED:
        known.clear()
    known[key] = value


def _after(text: str, skip: int) -> tuple[str, int]:
    """The text without its first lines, and how many of them are still to be left out."""
    if skip <= 0:
        return text, 0
    lines = text.count("\n")
    return ("", skip - lines) if lines <= skip else (text.split("\n", skip)[skip], 0)
