"""Notes on starts: how each program started, and why cold; imported by the client, so kept small.

The log of a node has a line per start, and the log of a job one per program of its entry point.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

REASON = "MLPLATFORM_WARM_LOG"
"""Variable with a file to which one line of JSON is appended per start: process, job, template, reason for cold."""

LOG_BYTES = 16 << 20
"""Size from which on the file gets no more lines: about 70,000 starts since the node was started."""

LINE_BYTES = 4096
"""Limit of a line; the file is opened for appending, so lines of several processes do not mix."""

REASON_CHARACTERS = 300

_JOB_LOG = "job-driver-"
"""Beginning of the names of the files to which Ray's supervisors of jobs let entry points print."""

TOLD = "MLPLATFORM_WARM_TOLD"
"""Variable of programs whose start is in the job's log; those that they start themselves are not added."""

WARM = "mlplatform: the program started warm"
COLD = "mlplatform: the program started cold: "
"""Line of the job's log, and the beginning of one that ends with the reason."""

DRIVERS = "driver"
"""Name of the template of drivers; all others are templates of workers."""


def note(environment: dict[str, str], template: str, reason: str | None, *, tell: bool = False) -> None:
    """Append how a program starts to the node's log, if there is one; a log that cannot be written is ignored.

    Args:
        environment: of the program.
        template: name of the template that the program starts from, or would start from.
        reason: why the program starts cold; None if it starts warm.
        tell: append it to the job's log, too, if that is the program's standard error.
    """
    # A name of a file may hold bytes that are not UTF-8.
    cold = None if reason is None else reason[:REASON_CHARACTERS].encode(errors="replace").decode()
    if tell:
        with suppress(OSError):
            _tell(WARM if cold is None else COLD + cold.replace("\n", " "))
    path = environment.get(REASON)
    if not path:
        return
    line = {
        "time": time.time(),
        "pid": os.getpid(),
        "job": environment.get("MLPLATFORM_JOB_ID"),
        "attempt": environment.get("MLPLATFORM_ATTEMPT"),
        "role": "driver" if template == DRIVERS else "worker",
        "template": template,
        "cold": cold,
    }
    content = json.dumps(line).encode() + b"\n"
    if len(content) <= LINE_BYTES:
        with suppress(OSError, ValueError):
            _append(path, content)


def _tell(line: str) -> None:
    """Write a line to the job's log; nothing is written to a pipe or a file of the job's own."""
    if os.readlink("/proc/self/fd/2").rpartition("/")[2].startswith(_JOB_LOG):  # noqa: PTH115 - pathlib takes 5 ms to import
        os.write(2, f"{line}\n".encode(errors="replace"))


def _append(path: str, content: bytes) -> None:
    # Without blocking: the program's environment may name a pipe that nobody reads.
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    try:
        if os.fstat(file).st_size < LOG_BYTES:
            os.write(file, content)
    finally:
        os.close(file)
