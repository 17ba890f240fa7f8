"""Free space on the disks that jobs write to through the platform's services."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlplatform_gateway.errors import DiskFullError

_GB = 10**9

_FULL = 32 << 20
"""Free bytes below which a disk is full: Postgres needs 16 MiB for the next segment of its log."""

_OBJECT_STORE = "object store"
"""Its disk is full with one percent left, for which it stores nothing more."""

_ADVICE = "Delete data (`make prune` lists what nobody needs any more), or give it a larger disk; jobs that run "


@dataclass(frozen=True)
class Disk:
    """A disk, in bytes.

    Attributes:
        name: what it stores.
        free: space that its service can use.
        size: all of its space.
    """

    name: str
    free: int
    size: int

    @property
    def is_full(self) -> bool:
        """True if its service can store nothing more."""
        return self.free < max(_FULL, self.size // 100 if self.name == _OBJECT_STORE else 0)


class Disks:
    """The disks of the object store and the databases, by a folder on each.

    Nothing is remembered: jobs are accepted again as soon as there is room.

    Args:
        folders: a folder on each disk, by what the disk stores; it is not opened.
        reserve: free bytes below which new jobs are rejected.
    """

    def __init__(self, folders: Mapping[str, Path], reserve: int) -> None:
        self._folders = dict(folders)
        self.reserve = reserve

    async def read(self) -> list[Disk]:
        """Return every disk as it is now."""
        # In a thread, because a disk on another host may not answer.
        return await asyncio.to_thread(self._read)

    async def problem(self, full: bool = False) -> str:
        """Return one sentence about the disk with the least room, if new jobs are rejected; empty if they are not.

        Args:
            full: only if its service can store nothing more, so that it is unavailable.
        """
        disks = sorted(await self.read(), key=lambda disk: (not disk.is_full, disk.free))
        least = disks[0] if disks else None
        if least is not None and least.is_full:
            return (
                f"New jobs are rejected: the disk of the {least.name} is full ({least.free / 10**6:.0f} MB free), and "
                f"nothing can be stored there. {_ADVICE}wait until there is room, for ten minutes at most."
            )
        if full or least is None or least.free >= self.reserve:
            return ""
        return (
            f"New jobs are rejected: the disk of the {least.name} has {least.free / _GB:.1f} GB free, less than "
            f"DISK_RESERVE_GB={self.reserve / _GB:g}. {_ADVICE}continue."
        )

    async def check(self) -> None:
        """Accept a new job.

        Raises:
            DiskFullError: a disk has too little room.
        """
        if problem := await self.problem():
            raise DiskFullError(problem)

    def _read(self) -> list[Disk]:
        found = []
        for name, folder in self._folders.items():
            status = os.statvfs(folder)
            found.append(Disk(name, status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize))
        return found
