"""Log lines from raw output of drivers and workers: without ANSI codes and Ray's own messages, with their source."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from mlplatform.text.terminal import printable, without_sequences

PART_BYTES = 64 << 10
"""Maximum length of a line: a longer one is split, a shorter one waits for its end."""

_REDRAWN_BYTES = 4 << 10
"""Length from which the overwritten states of an unfinished line are dropped: the line is sent again as it grows."""

_HELD_LINES = 50
"""Lines that a cursor movement can take back at most."""

NO_JOB = "ffffffff"
"""Ray's job id in the file names of workers that it started before a job needed them; their first line has the id."""

# A line of Ray's C++ code (spdlog's pattern in src/ray/util/logging.cc); level F, the reason of an abort, is kept.
_CORE = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [TDIWE] \d+ \d+(?: \([^)]*\))?\] ")

_CONTROL_PLANE = re.compile(r"\((?:pid=)?(?:raylet|gcs_server)[,)]")

_PROGRESS = "__ray_tqdm_magic_token__"
_MESSAGE = ":info_message:"

_DRIVER = re.compile(r"job-driver-(?P<ray_id>[\w.:@+-]+)\.log")

_WORKER = re.compile(
    r"(?P<stem>worker-(?:[0-9a-f]{40}|[0-9a-f]{56})-(?P<ray_job>[0-9a-f]{8})-(?P<pid>\d{1,10}))"
    r"(?:\.(?P<inner>\d{1,4}))?\.(?P<stream>out|err)(?:\.(?P<outer>\d{1,4}))?"
)

_NAMES = 20_000
"""Parsed names that are kept: every file of every node is listed several times per second."""

# Line ends, and cursor movements to a line above: bars of several lines are redrawn with them.
_ENDS = re.compile(rb"\n|\x1b\[(\d{0,4})[AF]")

# What later bytes complete: an escape sequence (ECMA-48, 5.4) or a character of UTF-8.
_INCOMPLETE = re.compile(
    rb"(?:\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*)?|[\xc0-\xff]|[\xe0-\xff][\x80-\xbf]|[\xf0-\xff][\x80-\xbf]{2})\Z"
)

_JOB_LINE = re.compile(rb"^:job_id:([0-9a-f]{8})\r?$", re.MULTILINE)


@dataclass(frozen=True)
class LogName:
    """The parsed name of a log file."""

    file: str
    """The file's name before it was rotated."""

    age: int = 0
    """Number of rotations; 0 for the file that is being written."""

    ray_id: str | None = None
    """Ray's submission id, for a driver's log; None for a worker's."""

    ray_job: str | None = None
    """Ray's hexadecimal job id, for a worker's log; None for a driver's."""

    pid: int = 0


@lru_cache(maxsize=_NAMES)
def log_name(name: str) -> LogName | None:
    """Parse the name of a file in a session's `logs` folder; None unless it is the log of a driver or a worker.

    Rotated files have their number before the extension (Ray's C++ code) or after it (Python's logging).
    """
    if match := _DRIVER.fullmatch(name):
        return LogName(name, ray_id=match["ray_id"])
    if match := _WORKER.fullmatch(name):
        file = f"{match['stem']}.{match['stream']}"
        age = int(match["inner"] or match["outer"] or 0)
        return LogName(file, age, ray_job=match["ray_job"], pid=int(match["pid"]))
    return None


def job_in(body: bytes) -> str | None:
    """Return Ray's id of the job that a worker's first lines name; None if there is none."""
    match = _JOB_LINE.search(body)
    return match[1].decode() if match else None


def plain(line: str) -> str | None:
    """Return a line as a terminal shows it, without colors; None if it overwrote itself with blanks."""
    line = without_sequences(line).replace("\n", "\r").rstrip("\r")
    if "\r" in line:
        line = next((part for part in reversed(line.split("\r")) if part), "")
        if not line.strip():
            return None
    return printable(line)


def is_noise(line: str) -> bool:
    """Return whether the line is from Ray's control plane and not from the job."""
    return bool(_CORE.match(line) or _CONTROL_PLANE.match(line)) or _PROGRESS in line


@dataclass
class LogSource:
    """The process that writes a log file, and its current actor or task."""

    node: str
    name: LogName
    job_id: str
    actor: str = ""
    task: str = ""

    def state(self) -> dict[str, str]:
        """Return the state that the next line depends on, as keyword arguments of this class."""
        return {key: value for key, value in (("actor", self.actor), ("task", self.task)) if value}

    def format_line(self, raw: bytes) -> str | None:
        """Return a line as the job's log shows it, without its end; None for one that is omitted."""
        text = plain(raw.decode("utf-8", "replace"))
        if text is None or (self.name.ray_job and self._is_marker(text)) or is_noise(text):
            return None
        if self.name.ray_id:
            of = "Running entrypoint for job"
            return text.replace(f"{of} {self.name.ray_id}: ", f"{of} {self.job_id}: ", 1)
        # As Ray's own driver prints it (ray._private.worker.print_worker_logs), with the node's name instead of its
        # address.
        who = f"{name} " if (name := self.actor or self.task) else ""
        return f"({who}pid={self.name.pid}, {self.node}) {text.removeprefix(_MESSAGE)}"

    def format_unfinished(self, raw: bytes) -> list[str]:
        """Return the lines after the complete ones, which may change, as `format_line` does; the last one may grow."""
        lines, rest = split(raw, final=True)
        # A copy, because an incomplete marker would name the wrong source.
        source = replace(self)
        shown = (source.format_line(part) for part in [*(line for line, _ in lines), _INCOMPLETE.sub(b"", raw[rest:])])
        return [text for text in shown if text]

    def _is_marker(self, text: str) -> bool:
        """Apply one of Ray's lines that name the source of the next lines (ray._private.log_monitor)."""
        if text.startswith(":actor_name:"):
            self.actor, self.task = text.removeprefix(":actor_name:"), ""
        elif text.startswith(":task_name:"):
            self.task = text.removeprefix(":task_name:")
        else:
            return text.startswith(":job_id:")
        return True


def split(body: bytes, *, final: bool = False) -> tuple[list[tuple[bytes, int]], int]:
    """Split bytes into complete lines, each without its end and with the offset after its end.

    A line that was redrawn from the line below is one line. It waits, with the lines below it, until as many have
    followed as the cursor was moved up, because each redraw of the block takes them back.

    Args:
        final: nothing follows, so no line is taken back.

    Returns:
        The lines, and the offset at which the unfinished line begins. Only states that it has overwritten are between
        the last line and this offset. A line that is longer than `PART_BYTES` is cut, and never within a character.
    """
    ends, top, height = _line_ends(body)
    block_end = ends[top] if top < len(ends) else len(body)
    if not final and 0 < len(ends) - top <= height and len(body) <= PART_BYTES:
        del ends[top:]
    starts = [0, *ends]
    lines = [(body[start : end - 1], end) for start, end in zip(starts, ends, strict=False)]
    start = starts[-1]
    if len(body) - start > _REDRAWN_BYTES:
        # A return at the end has overwritten nothing yet.
        shown = len(body[start:block_end].rstrip(b"\r"))
        start = max(start, body.rfind(b"\r", start, start + shown))
    while len(body) - start > PART_BYTES:
        end = _character_end(body, start + PART_BYTES)
        lines.append((body[start:end], end))
        start = end
    return lines, start


def _line_ends(body: bytes) -> tuple[list[int], int, int]:
    """Return the offsets after the ends of lines, the number of lines above the last redrawn one, and its moves up."""
    ends: list[int] = []
    top = height = moves = 0
    for match in _ENDS.finditer(body):
        if match[0] == b"\n":
            ends.append(match.end())
            moves = 0
        else:
            up = min(int(match[1] or 1) or 1, _HELD_LINES)
            moves = height = min(moves + up, _HELD_LINES)
            del ends[-up:]
            top = len(ends)
    return ends, top, height


def _character_end(body: bytes, end: int) -> int:
    """Return the last position at or before `end` where a UTF-8 character begins; `end` for other encodings."""
    return next((place for place in range(end, end - 4, -1) if body[place] & 0xC0 != 0x80), end)
