"""Stand-in for a program in its client's process group.

A program that starts warm has a session and a process group of its own, because a process cannot join a group of
another session. Signals to the client alone are for the program alone, and the client forwards them. Signals to the
client's group, or to all of its descendants (Ray stops jobs so), are also for the program's subprocesses: these reach
the stand-in, a child of the client, which passes them on. After the program's end it remains as long as the program's
subprocesses do, so that SIGKILL to the group, with which Ray ends whatever a job left running, ends them too.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress

from mlplatform_warm.waiting import await_readable, wake_on_signals


def stand_in(program: int, pid: int, forwarded: Iterable[int]) -> int:
    """Fork the stand-in; the forwarded signals have to be blocked.

    Args:
        program: file of `os.pidfd_open(pid)`.
        pid: of the program, which leads its process group.
        forwarded: signals to pass on.

    Returns:
        A pidfd of the stand-in.
    """
    if number := os.fork():
        return os.pidfd_open(number)
    try:
        _close_files([program])
        _represent(program, pid, forwarded)
    finally:
        os._exit(0)


def guard(stand_in: int, group: int) -> None:
    """Fork a process that ends what remains of a process group when its stand-in is killed; none if nothing remains.

    Args:
        stand_in: its pidfd.
        group: the process group.
    """
    try:
        if not _members(group) or os.fork():
            return
    except OSError:
        # Too many processes: nothing is lost but the guard.
        return
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        _close_files([stand_in])
        select.select([stand_in], [], [])
        # The stand-in ends by itself when nothing remains.
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    finally:
        os._exit(0)


def _represent(program: int, group: int, forwarded: Iterable[int]) -> None:
    def pass_on(number: int, _frame: object) -> None:
        for member in _members(group):
            # The client forwards to the program.
            if member != group:
                with suppress(ProcessLookupError):
                    os.kill(member, number)

    woken = wake_on_signals()
    for number in forwarded:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    await_readable(program, woken)
    while members := _members(group):
        _await_end(members[0], woken)


def _await_end(pid: int, woken: int) -> None:
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        await_readable(process, woken)
        os.close(process)


def _members(group: int) -> list[int]:
    """Return the processes of a group that have not ended."""
    try:
        os.killpg(group, 0)
    except OSError:
        return []
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib takes 5 ms to import
        if name.isdecimal():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # Behind the name, which may contain spaces and half a character: state, parent, process group.
                state, _parent, of, *_rest = file.read().rpartition(b")")[2].split()
                if int(of) == group and state not in b"ZX":
                    found.append(int(name))
    return found


def _close_files(kept: list[int]) -> None:
    """Close all files but one, because somebody may read the program's output to its end."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))
