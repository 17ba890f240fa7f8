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

_Handler = Callable[[int, FrameType | None], Any]


def before_sigterm(stays: Callable[[], bool]) -> None:
    """Call `stays` at each SIGTERM of this process; if it returns True, nothing else happens.

    Otherwise the handler follows that was set before, or that Ray sets later. Without effect in other threads than the
    main one, which alone can handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    ours = getattr(utils.set_sigterm_handler, "__wrapped__", utils.set_sigterm_handler)

    @functools.wraps(ours)
    def set_handler(handler: _Handler | signal.Handlers | int | None) -> None:
        ours(functools.partial(_handle, stays, handler))

    before = signal.getsignal(signal.SIGTERM)
    utils.set_sigterm_handler = set_handler
    set_handler(before.args[1] if isinstance(before, functools.partial) and before.func is _handle else before)


def _handle(
    stays: Callable[[], bool], handler: _Handler | signal.Handlers | int | None, number: int, frame: FrameType | None
) -> None:
    if stays():
        return
    if callable(handler):
        handler(number, frame)
    elif handler is not signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
