"""Template: a process that has imported the common packages, waits on a socket, and is forked for each program.

The base template imports no Ray, because Ray reads its configuration from the environment while it is loaded. It is
forked for further templates, which import Ray under the environment of the drivers, or of one job's workers; programs
are forked from those. Everything that can fail for one program happens in the forked process, before it announces
itself, so no request can break a template.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mlplatform_warm import conditions, threads
from mlplatform_warm.client import WAITING, Cold, read, send
from mlplatform_warm.recording import Record, Sources, import_all, recorded

BACKLOG = 512
PROGRESS_SECONDS = 0.2
POLL_MS = 1000

SETTLED_SECONDS = 1.0
"""Time after a template's last program until it calls what it was given to call then."""

STAY_SECONDS = 3600.0
"""A template with a slot ends after this time without a program."""

_STARTED = time.time()
_PR_SET_PDEATHSIG = 1
_STALE = signal.SIGUSR1
"""Signal of a forked process to its template: a file that was imported has changed."""

DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")
"""Beginnings of the paths of GPUs; CUDA and ROCm keep theirs open as long as they have a context."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Child:
    """A forked process, and the connection to its client; None for a process that became a template."""

    pid: int
    connection: socket.socket | None


class Template:
    """A template and its socket.

    Args:
        folder: of the sockets; only its owner may enter it.
        name: of this template; its socket is `<name>.sock`.
        environment: under which its packages were, or will be, imported.
        idle_seconds: it ends after this time without a child; None for never.
        origin: the template that this process was forked from; None for the base template, whose children become
            templates, and outlive their clients.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        environment: Mapping[str, str],
        *,
        idle_seconds: float | None = None,
        origin: Template | None = None,
    ) -> None:
        self.folder = folder
        self.name = name
        self.environment = dict(environment)
        self.idle_seconds = idle_seconds
        self._is_base = origin is None
        self._origin = origin
        """Not freed in this process, which would copy the memory that both share."""

        self._pid: int = os.getpid()
        self._parent: int = origin._pid if origin else os.getppid()
        self.record: Record = origin.record if origin else Record()
        self.sources: Sources = origin.sources if origin else Sources()
        self.preloaded: dict[str, None] = {}
        """Modules that this process has loaded, in their order."""

        self.known: frozenset[str] = frozenset()
        """Top-level modules that are loaded, or were looked for in vain."""

        self.names: set[str] = set()
        """Names (`/proc/<pid>/comm`, 15 bytes) that its programs had when they ended."""

        self._slot: Path | None = None
        self._ending = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._waiting: list[socket.socket] = []
        self._children: dict[int, Child] = {}
        self._poll = select.poll()
        self._shown = time.monotonic()

    @property
    def path(self) -> Path:
        """The socket."""
        return self.folder / f"{self.name}.sock"

    def listen(self) -> bool:
        """Open the socket; return False if another template of this name answers there."""
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _answers(self.path):
                return False
            self.path.unlink(missing_ok=True)
            self._listener.bind(str(self.path))
            self.path.chmod(0o600)
            self._listener.listen(BACKLOG)
            self._listener.setblocking(False)
            return True

    def end_with_origin(self) -> None:
        """Let this template end when the process that it was forked from does."""
        end_with_parent(signal.SIGTERM, self._parent)

    def load(self, modules: Sequence[str], loader: Callable[[Sequence[str]], None] = import_all) -> None:
        """Import modules; clients that connect meanwhile see that there is progress.

        Raises:
            RuntimeError: the process could not be forked safely.
        """
        since = _STARTED if self._is_base else time.time()
        with recorded(self.record, self._show_progress):
            loader(modules)
        threads.shrink()
        check_forkable()
        self.sources.add_loaded(since)
        self.preloaded = dict.fromkeys(sys.modules)
        self.known = conditions.known(self.record)
        gc.collect()
        gc.freeze()

    def stay_as(self, slot: str) -> None:
        """Stay for an hour after the last program, or until another template gets this slot."""
        self._slot = self.folder / slot
        self._slot.write_text(self.name)

    def serve(self, settled: Callable[[], None] | None = None) -> socket.socket | None:
        """Fork for each client.

        Args:
            settled: called in the template once, a second after the end of its last program so far.

        Returns:
            In each forked process, the connection to its client. In the template itself None, when it is time to end.
        """
        with _Signals(self._on_signal) as signals:
            self._poll.register(self._listener, select.POLLIN)
            self._poll.register(signals.wakeup, select.POLLIN)
            busy = time.monotonic()
            while self._goes_on(busy):
                for connection in self._clients():
                    if self._fork_for(connection):
                        return connection
                for number, _event in self._poll.poll(POLL_MS):
                    self._settle(number)
                signals.clear()
                busy = time.monotonic() if self._children else busy
                if settled and self.names and time.monotonic() - busy >= SETTLED_SECONDS:
                    settled()
                    settled = None
            return None

    def _fork_for(self, connection: socket.socket) -> bool:
        """Fork for a client; return True in the forked process."""
        self.sources.look()
        if (pid := os.fork()) == 0:
            self._leave(connection)
            return True
        self._adopt(Child(pid, None if self._is_base else connection))
        if self._is_base:
            connection.close()
        return False

    def fork(self, name: str, environment: Mapping[str, str], idle_seconds: float | None) -> Template | None:
        """Fork this process for another template; return that in the forked process, and None here."""
        if pid := os.fork():
            self._adopt(Child(pid, None))
            return None
        self._leave()
        return self.successor(name, environment, idle_seconds)

    def successor(self, name: str, environment: Mapping[str, str], idle_seconds: float | None) -> Template:
        """Return the template that this process, which was just forked from this one, becomes."""
        return Template(self.folder, name, environment, idle_seconds=idle_seconds, origin=self)

    def check_sources(self) -> None:
        """Raise Cold, in a forked process, if a file has changed since it was imported; the template then ends."""
        if changed := self.sources.changed():
            # Another process is the parent of one whose template has died.
            if os.getppid() == self._pid:
                os.kill(self._pid, _STALE)
            raise Cold(f"{changed} has changed since it was imported")

    def end(self) -> None:
        """Remove the socket, unless another template has it already."""
        self._listener.close()
        if not _answers(self.path):
            self.path.unlink(missing_ok=True)

    def _goes_on(self, busy: float) -> bool:
        if self._ending:
            # Programs still need their template, which passes their status on; templates do not need theirs.
            return bool(self._children) and not self._is_base
        idle = time.monotonic() - busy
        if self._slot:
            return bool(self._children) or (idle < STAY_SECONDS and self._has_slot())
        return bool(self._children) or self.idle_seconds is None or idle < self.idle_seconds

    def _has_slot(self) -> bool:
        try:
            return self._slot is not None and self._slot.read_text() == self.name
        except OSError:
            return False

    def _on_signal(self, number: int, _frame: object) -> None:
        """Accept no more clients, and end with the last program."""
        if not self._ending:
            self._ending = True
            with suppress(OSError):
                self.path.unlink()

    def _clients(self) -> Iterator[socket.socket]:
        yield from self._waiting
        self._waiting = []
        # No client is waiting, or the base template, which is loading, does not listen yet.
        with suppress(OSError):
            while True:
                connection, _address = self._listener.accept()
                yield connection

    def _show_progress(self) -> None:
        if time.monotonic() - self._shown < PROGRESS_SECONDS:
            return
        self._shown = time.monotonic()
        self._waiting = list(self._clients())
        for client in self._waiting:
            with suppress(OSError):
                client.send(WAITING, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _adopt(self, child: Child) -> None:
        """Watch a child until it ends, and its client, whose end ends the child."""
        number = os.pidfd_open(child.pid)
        self._children[number] = child
        self._poll.register(number, select.POLLIN)
        if child.connection:
            self._children[child.connection.fileno()] = child
            self._poll.register(child.connection, select.POLLRDHUP)

    def _settle(self, number: int) -> None:
        child = self._children.pop(number, None)
        if child is None:
            return
        self._poll.unregister(number)
        if child.connection and number == child.connection.fileno():
            # Nobody reads the program's status any more. The kernel has done the same, unless the program replaced
            # itself by another.
            _end_group(child.pid)
            return
        os.close(number)
        # Readable as long as nobody has waited for the process.
        self.names.add(read(f"/proc/{child.pid}/comm").strip())
        _pid, status = os.waitpid(child.pid, 0)
        if child.connection:
            if self._children.pop(child.connection.fileno(), None):
                self._poll.unregister(child.connection)
            with suppress(OSError):
                send(child.connection, {"status": status}, [])
            child.connection.close()

    def _leave(self, mine: socket.socket | None = None) -> None:
        """Close everything of the template but one connection, in a process that was forked from it."""
        self._listener.close()
        self.sources.close()
        for number, child in self._children.items():
            if child.connection is None or number != child.connection.fileno():
                os.close(number)
        for other in (*(child.connection for child in self._children.values()), *self._waiting):
            if other is not None and other is not mine:
                other.close()
        self._children.clear()
        self._waiting.clear()


class _Signals:
    """Signals of the template: each calls a function and wakes `poll` up; a forked process gets the defaults back."""

    def __init__(self, call: Callable[[int, object], None]) -> None:
        self._call = call
        self.wakeup, self._waker = socket.socketpair()

    def __enter__(self) -> Self:
        for end in (self.wakeup, self._waker):
            end.setblocking(False)
        for number in (signal.SIGTERM, _STALE):
            signal.signal(number, self._call)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *_error: object) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, _STALE):
            signal.signal(number, signal.SIG_DFL)
        self.wakeup.close()
        self._waker.close()

    def clear(self) -> None:
        """Read what has woken `poll` up."""
        with suppress(BlockingIOError):
            self.wakeup.recv(4096)


def check_forkable(devices: tuple[str, ...] = DEVICES) -> None:
    """Raise RuntimeError if a fork of this process would lack threads, or share a GPU's context.

    Args:
        devices: beginnings of paths that may not be open.
    """
    running = [thread.name for thread in threading.enumerate()]
    if len(running) > 1:
        raise RuntimeError(f"The imports have left threads running: {', '.join(running[1:])}.")
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if (target := str(entry.readlink())).startswith(devices):
                raise RuntimeError(f"The imports have opened the device {target}.")


def end_with_parent(number: signal.Signals, parent: int) -> None:
    """Let the kernel send this process a signal when its parent ends; it is sent at once if that has ended."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _end_group(pid: int) -> None:
    for end in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            end(pid, signal.SIGKILL)
            return
