"""Waiting for a file while signals are handled, and for the status of a process that is not a child of this one.

Imported by the client, so kept small.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct

_GET_INFO, _INFO_EXIT = 0xC040FF0B, 1 << 3
"""Request and flag of `ioctl` for a pidfd, in linux/pidfd.h."""

_INFO = struct.Struct("QQ11Ii")
"""The first 64 bytes of `struct pidfd_info`: the flags are first, and the wait status is last."""

_REAPED_MS = 1000
"""Longest wait for the parent of an ended process to reap it; before that, the kernel does not give its status."""


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


def exit_status(pidfd: int) -> int | None:
    """Return the wait status of a process that has ended, from the kernel; None before Linux 6.15.

    A program whose template has died and that ends without reporting its code has called `os._exit`, has replaced
    itself by another, or was ended by a signal.
    """
    reaped = select.poll()
    reaped.register(pidfd, 0)
    reaped.poll(_REAPED_MS)
    info = bytearray(_INFO.size)
    _INFO.pack_into(info, 0, _INFO_EXIT, *[0] * 13)
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:
        return None
    mask, *_fields, status = _INFO.unpack(info)
    return status if mask & _INFO_EXIT else None
