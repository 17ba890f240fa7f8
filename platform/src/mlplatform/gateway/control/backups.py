"""Times of the stack's backups, from the volume in which the backups record them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mlplatform.contract import BACKUP_SUCCEEDED, BACKUP_TIMER


@dataclass(frozen=True)
class Backups:
    """Backups of the stack.

    Attributes:
        folder: of the records; None without a stack.
        hours: between backups that are made on a timer; None without a timer.
    """

    folder: Path | None
    hours: float | None

    def succeeded(self) -> float:
        """Return the time of the last complete backup in seconds since 1970; 0 before the first one."""
        return self._time(BACKUP_SUCCEEDED)

    def timer_started(self) -> float:
        """Return the time since which backups are made on a timer; 0 if none ever was."""
        return self._time(BACKUP_TIMER)

    def _time(self, name: str) -> float:
        try:
            return (self.folder / name).stat().st_mtime if self.folder else 0.0
        except FileNotFoundError:
            return 0.0
