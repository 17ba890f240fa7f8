"""How a process ends, as MLflow's runs tell it: FINISHED, FAILED or KILLED."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGTERM_EXITS = (signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of a Python process that got SIGTERM: Ray's handler exits with 15, ours as a shell would."""

_WITHIN_RAY = "SystemExit is raised"
"""While Ray waits in C++, only handlers of signals run. What they raise becomes an exit with 1 that says so
(`check_signals` in Ray 2.60's `_raylet.pyx`)."""


def status_after(error: BaseException) -> str:
    """The status of a run whose process is ended by `error`."""
    if isinstance(error, KeyboardInterrupt):
        return "KILLED"
    if isinstance(error, SystemExit):
        if error.code in _SIGTERM_EXITS or getattr(error, "ray_terminate_msg", "").startswith(_WITHIN_RAY):
            return "KILLED"
        return "FINISHED" if error.code in (0, None) else "FAILED"
    return "FAILED"


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that the run is closed; only a main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class NotedExit:
    """Takes the place of `sys.exit`: nothing else tells what runs `atexit` how the process ends."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        """What ends the process, where that is no exception which `sys.excepthook` sees; None while nothing does."""
        self._exit = sys.exit
        sys.exit = self  # type: ignore[assignment]

    def __call__(self, code: object = None) -> None:
        if threading.current_thread() is threading.main_thread():
            handlers = (signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM))
            caller = sys._getframe(1).f_code
            by_signal = any(getattr(handler, "__code__", None) is caller for handler in handlers)
            # Ray Train's handler of Ctrl-C exits with 0.
            self.error = KeyboardInterrupt() if by_signal else SystemExit(code)
        self._exit(code)  # type: ignore[arg-type]
