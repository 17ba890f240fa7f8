"""Waiting for a file while signals are handled; imported by the client, so kept small."""

from __future__ import annotations

import os
import select
import signal


def wake_on_signals() -> int:
    """Return a file that can be read after each signal with a handler of this process."""
    receiver, sender = os.pipe()
    os.set_blocking(receiver, False)
    os.set_blocking(sender, False)
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    return receiver


def await_readable(file: int, woken: int) -> None:
    """Wait until a file can be read; handlers of signals run meanwhile.

    Without `woken`, the handler of a signal that arrives just before a blocking call would run only after that call.

    Args:
        file: to wait for.
        woken: `wake_on_signals()`.
    """
    ready: list[int] = []
    while file not in ready:
        ready = select.select([file, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
