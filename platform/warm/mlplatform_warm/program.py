"""Program that a forked process becomes: its inheritance, its `__main__`, and its end."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import linecache
import os
import random
import resource
import runpy
import signal
import site
import socket
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import SourceFileLoader
from itertools import takewhile
from pathlib import Path
from typing import Any

from mlplatform_warm.client import F_SETSIG, Cold, limits, python_of, read
from mlplatform_warm.template import Template

_PR_SET_DUMPABLE, _PR_SET_PTRACER = 4, 0x59616D61

_libc = ctypes.CDLL(None, use_errno=True)

client_pid = 0
"""The process that was executed for this one, whose ancestors a cold start would have; 0 in a template."""


def set_dumpable(on: bool) -> None:
    """Allow or forbid other processes of this user to trace this one, and to read its memory."""
    _libc.prctl(_PR_SET_DUMPABLE, int(on), 0, 0, 0)
    # `kernel.yama.ptrace_scope=1` allows it to parents only, so not to py-spy in a shell of the job; -1 is any process.
    _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(-on), 0, 0, 0)


class Program:
    """A program as Python's command line names it: a script, `-m module`, or `-c code`.

    Args:
        arguments: as on the command line, without the executable.
        report: file to which the exit code is written, for a client whose template has died.
        template: whose modules are not the program's.

    Raises:
        Cold: options other than `-u`, or a program that is read from the standard input, or that is not source code.
        OSError: the script cannot be read.
    """

    def __init__(self, arguments: list[str], report: int, template: Template) -> None:
        self.arguments = arguments
        self.status = 0
        self._report = report
        # Not freed when its caller returns, either: its records are in memory that is shared with the template, and
        # each page is copied when it is first written to.
        self._template = template
        self.unbuffered = False
        rest = list(arguments)
        while rest and rest[0] == "-u":
            self.unbuffered = True
            rest.pop(0)
        if not rest or rest[0] == "-":
            raise Cold("the program is read from the standard input")
        self.kind = rest[0] if rest[0] in ("-c", "-m") else "script"
        if self.kind == "script" and rest[0].startswith("-"):
            raise Cold(f"option {rest[0]} of Python")
        if self.kind != "script" and len(rest) < 2:
            raise Cold(f"option {rest[0]} lacks its argument")
        self.target, self.argv = (rest[0], rest) if self.kind == "script" else (rest[1], [rest[0], *rest[2:]])
        if self.kind == "script" and not Path(self.target).is_file():
            raise Cold(f"{self.target} is not a file")
        if self.kind == "script" and b"\0" in Path(self.target).read_bytes():
            raise Cold(f"{self.target} is bytecode or an archive")

    def folder(self) -> str:
        """Return the first entry of `sys.path`."""
        if self.kind == "script":
            return str(Path(os.path.realpath(self.target)).parent)
        return "" if self.kind == "-c" else str(Path.cwd())

    def module_path(self, environment: Mapping[str, str]) -> list[str]:
        """Return the entries of `sys.path` before those of the standard library."""
        extra = environment.get("PYTHONPATH", "")
        return [self.folder(), *(os.path.abspath(entry) for entry in extra.split(":") if extra)]  # noqa: PTH100

    def code(self) -> Callable[[], None]:
        """Make `__main__`, `sys.argv` and `sys.path[0]` those of the program; return what runs it."""
        main = types.ModuleType("__main__")
        main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
        sys.modules["__main__"] = main
        sys.argv = list(self.argv)
        sys.orig_argv = [sys.executable, *self.arguments]
        if self.kind == "-m":
            return lambda: runpy._run_module_as_main(self.target)  # type: ignore[attr-defined]
        if self.kind == "-c":
            main.__dict__.update(__loader__=sys.modules["builtins"].__loader__)
            source: Any = self.target.encode(errors="surrogateescape") + b"\n"
            compiled = compile(source, "<string>", "exec", dont_inherit=True)
            _show_in_tracebacks(compiled, source.decode(errors="replace"))
            return lambda: exec(compiled, main.__dict__)  # noqa: S102
        path = os.path.join(Path.cwd(), self.target)  # noqa: PTH118 - as Python does it, not normalized
        main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
        # This module's `from __future__` is not for the program.
        return lambda: exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102

    def fail(self, error: BaseException) -> None:
        """Report an exception that left the program as Python does."""
        if isinstance(error, SystemExit):
            self.status = _exit_code(error)
            return
        # Without the frames below the program.
        trace = error.__traceback__
        for _frame in range(2 if trace and trace.tb_next else 1):
            trace = trace.tb_next if trace else None
        error.__traceback__ = trace
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        self.status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        try:
            sys.excepthook(type(error), error, trace)
        except SystemExit as ended:
            self.status = _exit_code(ended)
        except BaseException:
            with contextlib.suppress(BaseException):
                sys.__excepthook__(type(error), error, trace)

    def end(self) -> None:
        """End this process as Python does, except that preloaded modules are not taken apart; it never returns.

        Some complain when they are taken apart in a forked process (Triton's nanobind reports leaks).
        """
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
        with _without_own_frame():
            atexit._run_exitfuncs()
        status = _flush(self.status)
        # Open files are flushed, and finalizers of the program's objects run.
        for name in self._imported():
            sys.modules.pop(name)
        namespace = vars(sys.modules.pop("__main__", types.ModuleType("__main__")))
        for name in [name for name in namespace if name != "__builtins__"]:
            namespace[name] = None
        gc.collect()
        status = _flush(status)
        _libc.fflush(None)
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [-status])
            os.kill(os.getpid(), -status)
        with contextlib.suppress(OSError):
            os.write(self._report, bytes([status & 0xFF]))
        os._exit(status)

    def _imported(self) -> list[str]:
        """Return the program's modules: the latest ones. Even to read the names of all would copy shared memory."""
        preloaded = self._template.preloaded
        last = next(reversed(preloaded), None)
        latest = takewhile(lambda name: name != last, reversed(sys.modules))
        return [name for name in latest if name not in preloaded and name != "__main__"]


def set_environment(environment: Mapping[str, str], exported: Mapping[str, str]) -> None:
    """Replace this process's variables, but keep those that imports have set."""
    os.environ.clear()
    os.environ.update({**exported, **environment})


def inherit(
    request: Mapping[str, Any], connection: socket.socket, files: list[int], exported: Mapping[str, str]
) -> tuple[socket.socket, int, int]:
    """Take over everything that an executed program would have inherited from its client.

    Args:
        request: `client.describe` of the client, with its process ID.
        connection: to the client.
        files: lifeline, report, current folder, and the files whose numbers `request["files"]` lists.
        exported: variables that the template's imports have set.

    Returns:
        The connection, lifeline and report, under numbers that are not the program's.

    Raises:
        Cold: something cannot be taken over.
    """
    global client_pid
    client_pid = request["client"]
    lifeline, report, folder, *passed = files
    os.fchdir(folder)
    os.close(folder)
    os.umask(request["umask"])
    for name, (soft, hard) in request["limits"].items():
        resource.setrlimit(limits()[name], (soft, hard))
    if (niceness := request["niceness"] - os.getpriority(os.PRIO_PROCESS, 0)) < 0:
        raise Cold("its priority is higher than the template's")
    os.nice(niceness)
    os.sched_setaffinity(0, request["processors"])
    if read("/proc/self/cgroup") != request["cgroup"]:
        raise Cold("it is in another control group")
    Path("/proc/self/oom_score_adj").write_text(str(request["kill_score"]))
    for number in request["ignored"]:
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    kept = _place(request["files"], passed, [connection.detach(), lifeline, report])
    set_environment(request["environment"], exported)
    return socket.socket(fileno=kept[0]), kept[1], kept[2]


def _place(numbers: list[int], passed: list[int], kept: list[int]) -> list[int]:
    """Give the passed files their numbers, and return new numbers of the kept ones, which are out of their way."""
    floor = max([2, *numbers]) + 1

    def lift(file: int) -> int:
        lifted = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, floor)
        os.close(file)
        return lifted

    high = dict(zip(numbers, map(lift, passed), strict=True))
    out_of_way = [lift(file) for file in kept]
    for number, file in high.items():
        os.dup2(file, number, inheritable=True)
        os.close(file)
    for number in {0, 1, 2} - high.keys():
        with contextlib.suppress(OSError):
            os.close(number)
    return out_of_way


def die_with_client(lifeline: int) -> None:
    """Let the kernel end this process's group when the client does.

    Nobody writes to the pipe, so its only event is the end of its last writer. `F_SETSIG` makes that event SIGKILL.
    """
    fcntl.fcntl(lifeline, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


class ModulePath:
    """`sys.path` of this process, which was started with `-m`, before its imports."""

    def __init__(self) -> None:
        self._initial = list(sys.path)
        extra = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(":") if entry}  # noqa: PTH100
        self._startup = [entry for entry in sys.path[1:] if entry not in extra]

    def apply(self, folders: list[str], packages: list[str]) -> None:
        """Make `sys.path` what it would be after a start in these folders and the imports since.

        Args:
            folders: of the program; the first is that of the script.
            packages: folders of packages in front of those of the template.
        """
        first, *extra = folders
        # Ray's import adds one.
        added = [entry for entry in sys.path if entry not in self._initial]
        ours = self._startup.index(site.getsitepackages()[0]) if packages else 0
        startup = [*self._startup[:ours], *packages, *self._startup[ours:]]
        sys.path[:] = [*dict.fromkeys(added), first, *dict.fromkeys([*extra, *startup])]


def packages_of(prefix: str) -> list[str]:
    """Return the folders of an environment's own packages, none without an environment."""
    return [path.replace(sys.prefix, prefix, 1) for path in site.getsitepackages()[:1] if prefix]


def enter(prefix: str) -> None:
    """Make this interpreter that of a virtual environment."""
    sys.prefix = sys.exec_prefix = prefix
    sys.executable = python_of(prefix)
    site.PREFIXES[:] = [prefix]
    importlib.reload(sysconfig)  # computes its paths from the prefix once, before Python 3.13
    if spawn := sys.modules.get("multiprocessing.spawn"):
        spawn.set_executable(sys.executable)


def draw_new_seeds(unseeded: Iterable[random.Random]) -> None:
    """Seed again what imports have seeded at random; Python does it itself for the functions of `random`.

    Args:
        unseeded: generators of the packages.
    """
    for generator in unseeded:
        generator.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


def open_standard_streams(unbuffered: bool) -> None:
    """Open `sys.stdin`, `sys.stdout` and `sys.stderr` as Python does when it starts."""
    encoding, errors = sys.__stdout__.encoding, sys.__stdout__.errors  # type: ignore[union-attr]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = None
        with contextlib.suppress(OSError):
            os.fstat(number)
            raw = io.FileIO(number, "rb" if number == 0 else "wb", closefd=False)
            raw.name = f"<{name}>"
            buffer: Any = raw
            if number == 0:
                buffer = io.BufferedReader(raw)
            elif not unbuffered:
                buffer = io.BufferedWriter(raw)
            stream = io.TextIOWrapper(
                buffer,
                encoding=encoding,
                errors="backslashreplace" if number == 2 else errors,
                newline=None if number == 0 else "\n",
                line_buffering=(not unbuffered or number == 0) and (number == 2 or raw.isatty()),
                write_through=unbuffered,
            )
            stream.mode = "r" if number == 0 else "w"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


@contextlib.contextmanager
def _without_own_frame() -> Iterator[None]:
    """Report errors of builtin exit handlers without a traceback, which would show this module's frame only."""
    hook = sys.unraisablehook

    def report(error: Any) -> None:
        trace = error.exc_traceback
        if trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            error = type(error)((error.exc_type, error.exc_value, trace.tb_next, error.err_msg, error.object))
        hook(error)

    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = hook


def _show_in_tracebacks(code: types.CodeType, source: str) -> None:
    """Let tracebacks show the lines of `-c`, as from Python 3.13 on."""
    if register := getattr(linecache, "_register_code", None):
        # 3.13.0 has one entry for the name, later versions one per code object.
        register(code if hasattr(linecache, "_interactive_cache") else "<string>", source, "<string>")


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    print(error.code, file=sys.stderr)
    return 1


def _flush(status: int) -> int:
    """Flush the standard streams; output that cannot be written makes the exit code 120, as in Python."""
    for stream in (getattr(sys, name, None) for name in ("stdout", "stderr")):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:
            status = status or 120
    return status
