"""Client of a template: run a Python program in a process forked from it, or execute Python itself.

It runs before any package is imported, so it uses little of the standard library: with `-I -S` it starts in about
15 ms. Until the program has started, executing Python is always possible and always correct; every doubt ends there.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress

from mlplatform_warm.notes import DRIVERS, TOLD, note
from mlplatform_warm.stand_in import guard, stand_in
from mlplatform_warm.variables import is_read_early
from mlplatform_warm.waiting import await_readable, exit_status, wake_on_signals

SOCKETS = "MLPLATFORM_WARM_SOCKETS"
"""Variable with the folder of the templates' sockets; without it programs start cold."""

SWITCH = "MLPLATFORM_WARM_START"
"""Variable that turns warm start off for a program when it is 0."""

JOB_PREFIX = "job-"
"""Beginning of the names of the workers' templates."""

SILENCE_SECONDS = 2.0
"""Longest time without an answer or a sign of progress before the program starts cold."""

PROGRESS_SECONDS = 60.0
"""Longest time to wait for a template that is importing, which takes as long as the program's own imports would."""

_CLIENT_BYTES = 1000
"""More than a `python` has that is this client."""

LENGTH = struct.Struct("!I")
MOST_BYTES = 1 << 26
MOST_FILES = 200
F_SETSIG = 10  # not in Python's fcntl

WAITING, FORKED, START = b".", b"+", b"!"
"""Single bytes: the template is still importing, its child is ready for the request, the program may start."""

FORWARDED = tuple(
    getattr(signal, name)
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGALRM", "SIGCONT")
)


class Cold(Exception):  # noqa: N818 - an outcome, not an error
    """The program has to start cold; the text is the reason."""


def run(arguments: list[str], environment: dict[str, str], template: str, prefix: str = "") -> None:
    """Replace this process by `python <arguments>`; it never returns.

    Args:
        arguments: as on Python's command line, without the executable.
        environment: of the program.
        template: name of the template to fork; its socket is `<template>.sock`.
        prefix: folder of the program's virtual environment, if it is in front of the template's.
    """
    tell = template == DRIVERS and TOLD not in environment
    if tell:
        environment = {**environment, TOLD: "1"}
    try:
        follow = _start_warm(arguments, environment, template, prefix, tell=tell)
    except (Cold, OSError, ValueError) as error:
        note(environment, template, f"{error}" or type(error).__name__, tell=tell)
        # Python takes the name that it is called by for its place, and so finds its virtual environment.
        os.execve(sys.executable, [python_of(prefix) or sys.executable, *arguments], environment)  # noqa: S606
    # No error may start the program a second time.
    _end_as(follow())


def _start_warm(
    arguments: list[str], environment: dict[str, str], template: str, prefix: str, *, tell: bool
) -> Callable[[], int]:
    """Start the program after a note of that, and return what waits for its end and returns its wait status."""
    folder = environment.get(SOCKETS)
    if not folder or environment.get(SWITCH) == "0":
        raise Cold("warm start is off")
    if any(os.isatty(number) for number in range(3) if _is_open(number)):
        raise Cold("a terminal controls processes of its own session only")
    lifeline, lifeline_end = os.pipe()
    report, report_end = os.pipe()
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    internal = {lifeline, lifeline_end, report, report_end, directory}
    inherited = _inherited_files(internal)
    connection = connect(folder, template, environment)
    _await_fork(connection)
    request = {**describe(arguments, environment, inherited), "prefix": prefix, "client": os.getpid()}
    send(connection, request, [lifeline, report_end, directory, *inherited])
    pid = _accepted(connection)
    child = os.pidfd_open(pid)
    woken = wake_on_signals()
    standing = _let_start(connection, child, pid, lambda: note(environment, template, None, tell=tell))

    def follow() -> int:
        # The child runs the program, and this process does nothing but wait for it.
        _forward_signals(child)
        # The child has inherited which signals are blocked; here they must arrive.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.close(report_end)
        status = _wait(connection, child, report, woken)
        guard(standing, pid)
        # Whatever the program left running stays, as it would after a cold start.
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) & ~os.O_ASYNC)
        return status

    return follow


def _let_start(connection: socket.socket, child: int, pid: int, announce: Callable[[], None]) -> int:
    """Announce and let the program start; return the pidfd of its stand-in. Signals that arrive meanwhile wait."""
    standing = None
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        standing = stand_in(child, pid, FORWARDED)
        # First, because the program's own lines go to the same file.
        announce()
        connection.sendall(START)
    except OSError:
        # The program has not started, so it is to start cold, and the signals are for this process.
        connection.close()
        if standing is not None:
            os.waitid(os.P_PIDFD, standing, os.WEXITED)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        raise
    return standing


def connect(folder: str, template: str, environment: dict[str, str]) -> socket.socket:
    """Connect to a template; if it does not run, let the base template create it.

    Raises:
        Cold: the base template does not run or does not answer.
    """
    path = f"{folder}/{template}.sock"
    for _attempt in range(2):
        connection = _connection(path)
        if connection is not None:
            return connection
        if not create(folder, template, environment):
            break
    raise Cold(f"template {template} is not running")


def create(folder: str, template: str, environment: dict[str, str], slot: str | None = None) -> bool:
    """Let the base template create a template; return False if the base template is not running.

    Args:
        folder: of the sockets.
        template: its name.
        environment: under which it imports.
        slot: the new template stays until another one gets this slot; None if it ends with its programs.

    Raises:
        Cold: the base template does not answer, or cannot create it.
    """
    base = _connection(f"{folder}/base.sock")
    if base is None:
        return False
    with base:
        _await_fork(base)
        send(base, {"create": template, "environment": environment, "slot": slot}, [])
        if refusal := receive_message(base).get("cold"):
            raise Cold(str(refusal))
    return True


def _connection(path: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(SILENCE_SECONDS)
    try:
        connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    check_owner(connection)
    return connection


def check_owner(connection: socket.socket) -> None:
    """Raise Cold unless the process at the other end belongs to the same user."""
    _pid, user, _group = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        raise Cold("the template belongs to another user")


def describe(arguments: list[str], environment: dict[str, str], inherited: list[int]) -> dict[str, object]:
    """Return everything that a process inherits from the one that executes it, except open files."""
    umask = os.umask(0o077)
    os.umask(umask)
    return {
        "arguments": arguments,
        "environment": environment,
        "files": inherited,
        "umask": umask,
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "processors": sorted(os.sched_getaffinity(0)),
        "limits": {name: resource.getrlimit(number) for name, number in limits().items()},
        "ignored": [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN],
        "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "cgroup": read("/proc/self/cgroup"),
        "kill_score": int(read("/proc/self/oom_score_adj")),
    }


def limits() -> dict[str, int]:
    """Return the resource limits of this system by name."""
    return {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}


def read(path: str) -> str:
    """Return the content of a small file, of any bytes: the kernel cuts names within a character."""
    with open(path, errors="surrogateescape") as file:  # noqa: PTH123 - pathlib takes 5 ms to import
        return file.read()


def send(connection: socket.socket, message: object, files: list[int]) -> None:
    """Send a message, with open files."""
    body = json.dumps(message).encode(errors="surrogateescape")
    socket.send_fds(connection, [LENGTH.pack(len(body))], files)
    connection.sendall(body)


def _await_fork(connection: socket.socket) -> None:
    """Wait for the process that was forked for this client.

    Open files are not sent before. A template that hangs would keep them open, and with them the pipe that somebody
    reads to the end of the program's output.
    """
    until = time.monotonic() + PROGRESS_SECONDS
    try:
        while (byte := connection.recv(1)) == WAITING:
            if time.monotonic() > until:
                raise Cold(f"the template has been importing for {PROGRESS_SECONDS:g} s")
    except TimeoutError:
        raise Cold(f"the template is silent for {SILENCE_SECONDS:g} s") from None
    if byte != FORKED:
        raise Cold("the template has sent an invalid answer" if byte else "the template has closed the connection")


def receive(connection: socket.socket) -> tuple[dict[str, object], list[int]]:
    """Receive a message and open files.

    Raises:
        Cold: the other end has closed the connection, is silent, or has sent something else.
    """
    try:
        head, files, _flags, _address = socket.recv_fds(connection, LENGTH.size, MOST_FILES + 3)
        head += _exactly(connection, LENGTH.size - len(head)) if head else b""
        if not head:
            raise Cold("the template has closed the connection")
        (size,) = LENGTH.unpack(head)
        if size > MOST_BYTES:
            raise Cold("the template has sent an invalid answer")
        message = json.loads(_exactly(connection, size).decode(errors="surrogateescape"))
    except TimeoutError:
        raise Cold(f"the template is silent for {SILENCE_SECONDS:g} s") from None
    except (ValueError, RecursionError):
        raise Cold("the template has sent an invalid answer") from None
    if not isinstance(message, dict):
        raise Cold("the template has sent an invalid answer")
    return message, files


def receive_message(connection: socket.socket) -> dict[str, object]:
    """Receive a message that comes without files."""
    return receive(connection)[0]


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            raise Cold("the template has closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _accepted(connection: socket.socket) -> int:
    answer = receive_message(connection)
    pid = answer.get("pid")
    if not isinstance(pid, int) or not 0 < pid < 1 << 31:
        raise Cold(str(answer.get("cold", "the template has sent an invalid answer")))
    return pid


def _inherited_files(internal: set[int]) -> list[int]:
    """Return the open files that an executed program would have; Python marks its own as close-on-exec."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    inherited = [
        number for number in numbers if number not in internal and _is_open(number) and os.get_inheritable(number)
    ]
    if len(inherited) > MOST_FILES:
        raise Cold(f"{len(inherited)} open files are too many to pass")
    return sorted(inherited)


def _is_open(number: int) -> bool:
    try:
        fcntl.fcntl(number, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def _forward_signals(child: int) -> None:
    def forward(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):  # it has ended; its status is on the way
            signal.pidfd_send_signal(child, number)

    def suspend(_number: int, _frame: object) -> None:
        forward(signal.SIGTSTP, None)
        os.kill(os.getpid(), signal.SIGSTOP)

    # Also those that are ignored here, which the program may handle.
    for number in FORWARDED:
        signal.signal(number, forward)
    signal.signal(signal.SIGTSTP, forward if signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN else suspend)


def _wait(connection: socket.socket, child: int, report: int, woken: int) -> int:
    """Return the child's wait status from the template; if that has died, the exit code that the child reports."""
    connection.settimeout(None)
    with suppress(Cold, OSError, ValueError):
        await_readable(connection.fileno(), woken)
        status = receive_message(connection).get("status")
        if isinstance(status, int):
            return status
    await_readable(child, woken)
    # A process that the program forked may hold the pipe open.
    os.set_blocking(report, False)
    with suppress(BlockingIOError):
        if code := os.read(report, 1):
            return code[0] << 8
    status = exit_status(child)
    return 1 << 8 if status is None else status


def _end_as(status: int) -> None:
    """End as the program did: with its exit code, or by its signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        # The program has written the core, if any.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def job_template(environment: dict[str, str]) -> str:
    """Return the name of the template for a worker of Ray: one per job and early-read environment."""
    early = sorted(item for item in environment.items() if is_read_early(item[0]))
    return f"{JOB_PREFIX}{environment['RAY_JOB_ID']}-{zlib.crc32(repr(early).encode(errors='surrogateescape')):08x}"


def python_of(prefix: str) -> str:
    """Return the path of an environment's Python; empty without one."""
    return prefix and f"{prefix}/bin/python"


def prefix_of(program: str) -> str:
    """Return the folder of the virtual environment that has this program, if its Python is this client."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(program)))  # noqa: PTH100, PTH120 - as above
    try:
        with open(python_of(folder), "rb") as file:  # noqa: PTH123
            is_client = __name__.encode() in file.read(_CLIENT_BYTES)
    except OSError:
        return ""
    return folder if is_client and os.path.exists(f"{folder}/pyvenv.cfg") else ""  # noqa: PTH110


def python() -> None:
    """Entry point of the `python` that is first on the PATH of jobs, and of that of environments."""
    arguments, environment = sys.argv[1:], dict(os.environ)
    is_worker = "RAY_JOB_ID" in environment and arguments[:1] and arguments[0].endswith("/default_worker.py")
    run(arguments, environment, job_template(environment) if is_worker else DRIVERS, prefix_of(sys.argv[0]))
