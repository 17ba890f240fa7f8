"""Watch on folders, by inotify: that nothing has changed in them is known in microseconds."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

_MODIFY, _ATTRIBUTES, _MOVED, _CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x2, 0x4, 0xC0, 0x100, 0x200, 0x400, 0x800
_ONLY_FOLDERS = 0x01000000
_MASK = _MODIFY | _ATTRIBUTES | _MOVED | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLY_FOLDERS

_EVENT = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 16

_LOCAL = frozenset(("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"))
"""File systems that only this kernel changes; it does not tell what other machines change."""


class Watch:
    """Folders, and whether something happens in them. For one process: forked processes would share its events."""

    def __init__(self) -> None:
        number = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        # A user has 128 of them, or so.
        self._file: int | None = number if number >= 0 else None
        self._complete: dict[str, bool] = {}
        self._numbers: dict[str, int | None] = {}
        self._relevant: dict[int, set[str] | None] = {}
        """Names whose events count, by the kernel's number of the folder; None for all."""

        self._devices = _local_devices()

    def add(self, folder: str) -> bool:
        """Watch a folder, and its name and that of each folder above it.

        Returns:
            False if a change could remain unnoticed: on a file system of another machine, below a symbolic link, or
            beyond a limit of the kernel.
        """
        if folder not in self._complete:
            self._complete[folder] = os.path.realpath(folder) == folder and self._watch_all(folder)
        return self._complete[folder]

    def has_events(self) -> bool:
        """Return whether something has happened since the last call."""
        counts = False
        while self._file is not None:
            try:
                events = os.read(self._file, _BUFFER_BYTES)
            except BlockingIOError:
                break
            offset = 0
            while offset < len(events):
                number, _mask, _cookie, size = _EVENT.unpack_from(events, offset)
                offset += _EVENT.size + size
                name = os.fsdecode(events[offset - size : offset].rstrip(b"\0"))
                names = self._relevant.get(number)
                # No name: the folder itself, or events that were lost because too many were waiting.
                counts = counts or names is None or not name or name in names
        return counts

    def close(self) -> None:
        """Stop watching, in this process."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _watch_all(self, folder: str) -> bool:
        number = self._number(folder)
        if number is None:
            return False
        self._relevant[number] = None
        while (above := str(Path(folder).parent)) != folder:
            number = self._number(above)
            if number is None:
                return False
            if (names := self._relevant.setdefault(number, set())) is not None:
                names.add(Path(folder).name)
            folder = above
        return True

    def _number(self, folder: str) -> int | None:
        """Return the kernel's number of a folder that it now watches; None if it does not."""
        if folder not in self._numbers:
            self._numbers[folder] = self._started(folder)
        return self._numbers[folder]

    def _started(self, folder: str) -> int | None:
        try:
            device = os.stat(folder).st_dev  # noqa: PTH116 - 900 folders
        except OSError:
            return None
        if self._file is None or device not in self._devices:
            return None
        number = _libc.inotify_add_watch(self._file, os.fsencode(folder), _MASK)
        return number if number >= 0 else None


def _local_devices() -> frozenset[int]:
    """Return the numbers of mounted file systems of this machine, as in `st_dev`."""
    devices = set()
    for line in os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).rstrip("\n").split("\n"):
        mount, _separator, system = line.partition(" - ")
        if system.split()[0] in _LOCAL:
            major, minor = mount.split()[2].split(":")
            devices.add(os.makedev(int(major), int(minor)))
    return frozenset(devices)
