"""Times of backups that outlive their containers, as empty files in a volume that the gateway reads."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from mlplatform.contract import BACKUP_SUCCEEDED, BACKUP_TIMER
from mlplatform.files import atomic

STATE = Path("/state")
"""Mount point of the volume."""


def succeeded() -> None:
    """Record that a backup was completed now."""
    (STATE / BACKUP_SUCCEEDED).touch()


def timer_started() -> None:
    """Record since when backups are made on a timer; only the first call does."""
    if not (STATE / BACKUP_TIMER).exists():
        (STATE / BACKUP_TIMER).touch()


def last_success() -> float:
    """Return the time of the last complete backup in seconds since 1970; 0 before the first one."""
    try:
        return (STATE / BACKUP_SUCCEEDED).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def one_at_a_time() -> AbstractContextManager[None]:
    """Wait for the end of another backup or restore.

    The first backup to end would let the buckets delete what the other still reads, as a restore does.
    """
    return atomic.alone(STATE / "running", "Another backup or restore runs; this one starts when that has ended.")
