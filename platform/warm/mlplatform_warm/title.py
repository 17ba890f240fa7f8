"""Command line and environment of a process as `ps`, /proc and core dumps show them; a fork shows its template's."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_NAME, _PR_SET_MM, _PR_SET_MM_MAP = 15, 35, 14

_MAP = struct.Struct("11QQIi")
"""`struct prctl_mm_map` of linux/prctl.h: eleven addresses, auxiliary vector and its size (none), file (none: -1)."""

_START_CODE, _START_STACK, _START_DATA = 26, 28, 45
"""Numbers of fields of /proc/PID/stat, proc_pid_stat(5); each is followed by its end, or the next address."""

_NAME_BYTES = 15

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sbrk.restype = ctypes.c_ulong

_shown: list[object] = []
"""Memory that the kernel reads; it belongs to the process until its end."""


def show(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Show the command line `python <arguments>` and the environment, as after a cold start.

    `PR_SET_MM_MAP` points the kernel to both in memory, and needs no privilege. Where that fails (a
    kernel without CONFIG_CHECKPOINT_RESTORE, gVisor), the template's remain. A library that later overwrites the
    original command line, as Ray's `setproctitle` does in workers, has no visible effect.
    """
    name = os.fsencode(Path(sys.executable).name)[:_NAME_BYTES]
    _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0)
    words = _terminated([sys.executable, *arguments])
    variables = _terminated([f"{name}={value}" for name, value in environment.items()])
    memory = ctypes.create_string_buffer(words + variables)
    arguments_start = ctypes.addressof(memory)
    environment_start = arguments_start + len(words)
    code, code_end = _fields(_START_CODE, 2)
    (stack,) = _fields(_START_STACK, 1)
    data, data_end, heap = _fields(_START_DATA, 3)
    addresses = _MAP.pack(
        *(code, code_end, data, data_end, heap, _libc.sbrk(0), stack),
        *(arguments_start, environment_start, environment_start, environment_start + len(variables)),
        *(0, 0, -1),
    )
    if _libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, addresses, len(addresses), 0) == 0:
        _shown.append(memory)


def _terminated(words: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def _fields(first: int, count: int) -> list[int]:
    """Return fields of /proc/self/stat; the second is the name, which may contain spaces and half a character."""
    rest = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    return [int(field) for field in rest[first - 3 : first - 3 + count]]
