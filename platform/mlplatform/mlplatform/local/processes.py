"""Processes of an instance of the embedded platform: start them, find all of them, end them."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import psutil

LOOPBACK = "127.0.0.1"

MARK = "MLPLATFORM_INSTANCE"
"""Variable that every process of an instance inherits; Ray's workers overwrite it with their titles."""

STOP_SECONDS = 5.0

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 20_000
"""Above the ports of Ray's workers in a cluster that somebody else has started (10002 to 19999)."""

_FEWEST_PORTS = 1000
"""If there are fewer below, as after a change of Linux's range, any port will do."""


@dataclass(frozen=True)
class Process:
    """A process that leads its own session; its start time tells it from a later one with the same id."""

    pid: int
    created: float
    name: str = ""
    """Key in `programs.PROGRAMS`, or `supervisor.NAME`."""


def spawn(name: str, command: Sequence[str], env: Mapping[str, str], folder: Path) -> Process:
    """Start a program in a session of its own; its output is appended to `logs/<name>.log` in the folder."""
    with (folder / "logs" / f"{name}.log").open("ab") as log:
        child = subprocess.Popen(
            command,
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Process(child.pid, psutil.Process(child.pid).create_time(), name)


def free_ports(count: int, promised: Collection[int] = ()) -> list[int]:
    """Return different ports that are free now.

    They are below those that Linux gives to outgoing connections and to servers without a port of their own: Ray opens
    some of its ports ten seconds later, and its node ends if one is taken by then.

    Args:
        count: how many.
        promised: ports that others will open.
    """
    lowest, _highest = map(int, _EPHEMERAL.read_text().split())
    candidates = range(_LOWEST_PORT, lowest) if lowest > _LOWEST_PORT + _FEWEST_PORTS else range(1024, 1 << 16)
    shuffled = random.sample(candidates, len(candidates))
    return list(islice((port for port in shuffled if port not in promised and _is_free(port)), count))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def is_alive(process: Process) -> bool:
    """Return whether this process runs, and not another one under its id."""
    try:
        found = psutil.Process(process.pid)
        return bool(found.create_time() == process.created) and is_running(found)
    except psutil.NoSuchProcess:
        return False


def is_running(process: psutil.Process) -> bool:
    """Return whether a process has not ended; a zombie, which its parent has yet to reap, has."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE) and bool(process.is_running())
    except psutil.NoSuchProcess:
        return False


def members(instance_id: str, leaders: Collection[Process]) -> list[psutil.Process]:
    """Return every process of an instance: in a leader's session, below one of those, or with the instance's mark.

    None of the three finds all: Ray's workers overwrite their environment, drivers lead sessions of their own, and
    children of a killed parent are orphans.
    """
    sessions = _sessions(leaders)
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) in sessions or process.environ().get(MARK) == instance_id:
                found[process.pid] = process
                found.update({child.pid: child for child in process.children(recursive=True)})
    found.pop(os.getpid(), None)
    return [process for process in found.values() if is_running(process)]


def members_without(instance_id: str, others: Collection[Process]) -> list[psutil.Process]:
    """Return the members of an instance that belong to none of these leaders' sessions."""
    found = members(instance_id, ())
    # After that: the others may have started processes while these were listed.
    kept = {process.pid for other in others for process in in_session(other)}
    return [process for process in found if process.pid not in kept]


def in_session(leader: Process) -> list[psutil.Process]:
    """Return the processes in a leader's session, also after the leader itself has ended."""
    sessions = _sessions([leader])
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) in sessions and is_running(process):
                found.append(process)
    return found


def end(find: Callable[[], list[psutil.Process]], *, at_once: bool = False) -> None:
    """Send SIGTERM to all, then SIGKILL to the rest, and to what was started meanwhile.

    Args:
        find: the processes to end; called again until it finds none, for at most `STOP_SECONDS`.
        at_once: send SIGKILL only.
    """
    if not at_once:
        found = find()
        _signal(found, signal.SIGTERM)
        psutil.wait_procs(found, timeout=STOP_SECONDS)
    deadline = time.monotonic() + STOP_SECONDS
    while (left := find()) and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        psutil.wait_procs(left, timeout=1)


def _sessions(leaders: Collection[Process]) -> set[int]:
    return {leader.pid for leader in leaders if not _is_reused(leader)}


def _is_reused(process: Process) -> bool:
    """Return whether the id now belongs to another process; it cannot while a member of its session is left."""
    try:
        return bool(psutil.Process(process.pid).create_time() != process.created)
    except psutil.NoSuchProcess:
        return False


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
