"""One job's log in memory: the last chunk, the chunks that the object store lacks, and the offset read in each file."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field

from mlplatform.contract import STARTED_COLD, STARTED_WARM
from mlplatform_gateway.logs.lines import LogName, LogSource, log_name, split

GENERATIONS = 8
"""Rotated files of one name whose offsets are remembered; Ray keeps 5 at most (RAY_ROTATION_BACKUP_COUNT)."""


@dataclass
class SourceFile:
    """A log file on a node, together with the files that it was rotated to."""

    source: LogSource
    offsets: dict[int, int] = field(default_factory=dict)
    """Bytes accepted, by inode; the oldest first."""

    partial: dict[int, bytes] = field(default_factory=dict)
    """The last line after the accepted bytes while it is incomplete, by inode."""

    touched: float = 0.0
    """Time of the last change of `partial` on the monotonic clock."""

    def move(self, inode: int, offset: int) -> None:
        """Continue at `offset`; the partial line before it is complete or obsolete."""
        self.partial.pop(inode, None)
        # At its old place, a file whose inode was used before would be forgotten too early.
        self.offsets.pop(inode, None)
        self.offsets[inode] = offset
        while len(self.offsets) > GENERATIONS:
            oldest = next(iter(self.offsets))
            del self.offsets[oldest]
            self.partial.pop(oldest, None)


@dataclass
class Chunk:
    """A full part of a log, stored or about to be; `size` is in bytes."""

    number: int
    size: int
    lines: int


@dataclass(frozen=True)
class Snapshot:
    """State of the last chunk when a write of it began."""

    version: int
    number: int
    size: int
    length: int
    """Size in characters."""


class JobLog:
    """A job's log: full chunks, which the object store has or will have, and the last chunk in memory.

    Args:
        job_id: the job's id.
        limit: bytes of the whole log, of which the middle is omitted.
        chunk_bytes: bytes of a full chunk.
        starts: counts the lines that say how a program started, True for warm.
    """

    def __init__(self, job_id: str, limit: int, chunk_bytes: int, starts: Counter[bool] | None = None) -> None:
        self.id = job_id
        self._starts = Counter() if starts is None else starts
        self.loaded = self.closed = self.deleted = False
        self.files: dict[str, SourceFile] = {}
        self.sessions: set[str] = set()
        """Ray sessions in which a driver of this job has printed."""
        self.chunks: list[Chunk] = []
        self.number = self.size = self.lines = 0
        self.omitted = self.omitted_lines = 0
        self.unsaved: dict[int, str] = {}
        """Content of full chunks that the object store lacks, in order."""
        self.obsolete: list[int] = []
        """Chunks that are omitted from the log and not yet deleted from the object store."""
        self.readers = 0
        self.used = time.monotonic()
        self.loading, self.writing = asyncio.Lock(), asyncio.Lock()
        self.queued = False
        """True if the writer has this log in its queue or in progress."""
        self.rejected = False
        """True if the object store did not accept the last write."""
        self.changed, self.saved, self.hurry = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._pieces: list[str] = []
        self._version = self._saved_version = self._saved_size = self._saved_length = 0
        self._limit, self._chunk_bytes = limit, chunk_bytes

    @property
    def dirty(self) -> bool:
        """True if the object store has an older version of the last chunk."""
        return self._version != self._saved_version

    @property
    def pending(self) -> bool:
        """True if the object store lacks any part of the log."""
        return self.dirty or bool(self.unsaved)

    @property
    def unwritten(self) -> int:
        """Bytes that the object store lacks."""
        return sum(map(len, self.unsaved.values())) + self.size - self._saved_size

    def text(self) -> str:
        """Return the text of the last chunk."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def stored_text(self) -> str:
        """Return the text of the last chunk as far as the object store has it."""
        return self.text()[: self._saved_length]

    def content(self) -> str:
        """Return the last chunk as the object store keeps it: a line of JSON, then the text."""
        header = {
            "chunks": [[chunk.number, chunk.size, chunk.lines] for chunk in self.chunks],
            "left_out": [self.omitted, self.omitted_lines],
            "sources": {
                key: {"offsets": list(file.offsets.items()), **file.source.state()} for key, file in self.files.items()
            },
        }
        return f"{json.dumps(header)}\n{self.text()}"

    def restore(self, number: int, content: str) -> None:
        """Continue from the last chunk in the object store."""
        first, text = content.split("\n", 1)
        header = json.loads(first)
        self.chunks = [Chunk(*chunk) for chunk in header["chunks"]]
        self.omitted, self.omitted_lines = header["left_out"]
        for key, state in header["sources"].items():
            file = self.file(*key.split("/"))
            file.offsets = dict(state.pop("offsets"))
            file.source.actor, file.source.task = state.get("actor", ""), state.get("task", "")
        self.number, self._pieces = number, [text]
        self.size, self.lines = len(text.encode()), text.count("\n")
        self._saved_size, self._saved_length = self.size, len(text)

    def file(self, node: str, session: str, name: str) -> SourceFile:
        """Return the file of this name; add it if it is new."""
        key = f"{node}/{session}/{name}"
        if key not in self.files:
            parsed = log_name(name) or LogName(name)
            self.files[key] = SourceFile(LogSource(node, parsed, self.id))
            if parsed.ray_id:
                self.sessions.add(session)
        return self.files[key]

    def accept(self, file: SourceFile, inode: int, offset: int, body: bytes, more: bool) -> int:
        """Add the complete lines of a file's bytes from `offset` on.

        Args:
            more: the file continues after the body, so its last line is not partial.

        Returns:
            The offset at which the file continues.
        """
        lines, rest = split(body)
        for raw, end in lines:
            self._add_line(file, inode, raw, offset + end)
        if rest > (lines[-1][1] if lines else 0):
            # Not a new version: an older offset in the store means that dropped bytes are sent again.
            file.move(inode, offset + rest)
        if rest < len(body) and not more and file.partial.get(inode) != body[rest:]:
            file.offsets.setdefault(inode, offset)
            file.partial[inode], file.touched = body[rest:], time.monotonic()
        return offset + rest

    def unfinished(self) -> list[tuple[float, str]]:
        """Return the lines that are not complete yet, as last printed, with their times; the latest is the last."""
        found = [
            (file.touched, text)
            for file in self.files.values()
            for raw in file.partial.values()
            for text in file.source.format_unfinished(raw)
        ]
        return sorted(found, key=lambda line: line[0])

    def flush_partial_lines(self, nodes: set[str] | None = None) -> None:
        """Add the partial last lines of the files of some nodes; None means all nodes."""
        for file in self.files.values():
            if nodes is not None and file.source.node not in nodes:
                continue
            for inode, raw in list(file.partial.items()):
                begin = file.offsets.get(inode, 0)
                lines, rest = split(raw, final=True)
                last = [(raw[rest:], len(raw))] if rest < len(raw) else []
                for line, end in [*lines, *last]:
                    self._add_line(file, inode, line, begin + end)

    def append(self, line: str) -> None:
        """Add a line to the last chunk."""
        self._pieces.append(f"{line}\n")
        self.size += len(line.encode()) + 1
        self.lines += 1
        self._version += 1

    def snapshot(self) -> Snapshot:
        """Return the state of the last chunk, for `written`."""
        return Snapshot(self._version, self.number, self.size, len(self.text()))

    def written(self, snapshot: Snapshot) -> None:
        """Record that the object store has the last chunk as of `snapshot`."""
        self._saved_version, self.rejected = snapshot.version, False
        if snapshot.number == self.number:
            self._saved_size, self._saved_length = snapshot.size, snapshot.length

    def announce(self) -> None:
        """Wake the readers that follow this log."""
        self.changed.set()
        self.changed = asyncio.Event()

    def has_chunk(self, number: int) -> bool:
        """Return whether `number` is a full chunk of the log, and not omitted from it."""
        return any(chunk.number == number for chunk in self.chunks)

    def chunk_after(self, number: int) -> int:
        """Return the number of the next chunk that is not omitted; the last chunk's in memory if there is none."""
        return next((chunk.number for chunk in self.chunks if chunk.number > number), self.number)

    def lines_before(self, number: int) -> int:
        """Return how many lines precede a chunk that follows the omitted ones, which count."""
        return self.omitted_lines + sum(chunk.lines for chunk in self.chunks if chunk.number < number)

    def _add_line(self, file: SourceFile, inode: int, raw: bytes, end: int) -> None:
        """Add a line of a file, and record that the file is read up to `end`."""
        line = file.source.format_line(raw)
        file.move(inode, end)
        self._version += 1
        if line is not None:
            self.append(line)
            if file.source.name.ray_id and line.startswith((STARTED_WARM, STARTED_COLD)):
                self._starts[line == STARTED_WARM] += 1
            # Here rather than after the request: the offsets in a chunk's header must match its text.
            if self.size >= self._chunk_bytes:
                self._seal()

    def _seal(self) -> None:
        self.unsaved[self.number] = self.content()
        self.chunks.append(Chunk(self.number, self.size, self.lines))
        self.number += 1
        self.size = self.lines = self._saved_size = self._saved_length = 0
        self._pieces = []
        self._version += 1
        self._omit()

    def _omit(self) -> None:
        """Omit chunks from the middle of a long log: the first quarter of the limit and the end remain."""
        head, first = 0, 0
        while first < len(self.chunks) and head + self.chunks[first].size <= self._limit // 4:
            head += self.chunks[first].size
            first += 1
        while first < len(self.chunks) - 1 and sum(chunk.size for chunk in self.chunks) > self._limit:
            chunk = self.chunks.pop(first)
            self.omitted += chunk.size
            self.omitted_lines += chunk.lines
            self.obsolete.append(chunk.number)
