"""Log of a node's starts: how each program started, and why it started cold; imported by the client, so kept small."""

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

DRIVERS = "driver"
"""Name of the template of drivers; all others are templates of workers."""


def note(environment: dict[str, str], template: str, reason: str | None) -> None:
    """Append how a program starts to the log, if there is one; a log that is full or cannot be written is ignored.

    Args:
        environment: of the program.
        template: name of the template that the program starts from, or would start from.
        reason: why the program starts cold; None if it starts warm.
    """
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
        # A name of a file may hold bytes that are not UTF-8.
        "cold": None if reason is None else reason[:REASON_CHARACTERS].encode(errors="replace").decode(),
    }
    content = json.dumps(line).encode() + b"\n"
    if len(content) <= LINE_BYTES:
        with suppress(OSError, ValueError):
            _append(path, content)


def _append(path: str, content: bytes) -> None:
    # Without blocking: the program's environment may name a pipe that nobody reads.
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    try:
        if os.fstat(file).st_size < LOG_BYTES:
            os.write(file, content)
    finally:
        os.close(file)
