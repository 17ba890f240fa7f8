"""Handler of SIGTERM in a driver, which Ray replaces by its own, and which ends the driver; seen in Ray 2.60.0."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from ray._private import utils

_Former = Callable[[int, FrameType | None], Any] | signal.Handlers | int | None


def before_sigterm(stays: Callable[[], bool]) -> None:
    """Call `stays` at each SIGTERM of this process; if it returns True, nothing else happens.

    Otherwise the handler follows that was set before, or that Ray sets later. Without effect in other threads than the
    main one, which alone can handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    ours = getattr(utils.set_sigterm_handler, "__wrapped__", utils.set_sigterm_handler)

    @functools.wraps(ours)
    def set_handler(handler: _Former) -> None:
        ours(_Handler(stays, handler))

    utils.set_sigterm_handler = set_handler
    before = signal.getsignal(signal.SIGTERM)
    set_handler(before.former if isinstance(before, _Handler) else before)


class _Handler:
    """Handler of SIGTERM, unless `stays` returns True the former one."""

    def __init__(self, stays: Callable[[], bool], former: _Former) -> None:
        self._stays = stays
        self.former = former
        if callable(former):
            # Whoever compares the code of handlers with that of a caller of `sys.exit` sees the former one.
            self.__code__ = getattr(former, "__code__", None)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._stays():
            return
        if callable(self.former):
            self.former(number, frame)
        elif self.former is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
