"""Status of a run according to how its process ends: FINISHED, FAILED or KILLED."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mlplatform.compat import ray_core

_SIGTERM_EXITS = (signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of a Python process after SIGTERM: Ray's handler exits with 15, ours with a shell's code."""


def status_after(error: BaseException) -> str:
    """Return the status of a run whose process is ended by `error`."""
    if isinstance(error, KeyboardInterrupt):
        return "KILLED"
    if isinstance(error, SystemExit):
        if error.code in _SIGTERM_EXITS or ray_core.is_exit_from_signal_handler(error):
            return "KILLED"
        return "FINISHED" if error.code in (0, None) else "FAILED"
    return "FAILED"


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that the run is closed; do nothing outside of the main thread."""
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


class ExitRecorder:
    """Replacement for `sys.exit` that records the exit status, which `atexit` handlers cannot see otherwise.

    It stays in place until the process ends. `sys.excepthook` sees every other exception, but not SystemExit.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        """SystemExit or KeyboardInterrupt that ends the process; None before `sys.exit` is called."""
        self._exit = sys.exit
        sys.exit = self  # type: ignore[assignment]

    def __call__(self, code: object = None) -> None:
        if threading.current_thread() is threading.main_thread():
            handlers = (signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM))
            caller = sys._getframe(1).f_code
            by_signal = any(getattr(handler, "__code__", None) is caller for handler in handlers)
            # Ray Train's Ctrl-C handler exits with code 0.
            self.error = KeyboardInterrupt() if by_signal else SystemExit(code)
        self._exit(code)  # type: ignore[arg-type]
