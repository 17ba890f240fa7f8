"""Timer of the service `backup-timer`: a backup whenever the last complete one is older than the interval.

Each backup is a process of its own, so that between two backups only this small one remains in memory. The times of
backups outlive their containers, as empty files in a volume that the gateway reads.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from mlplatform.contract import BACKUP_SUCCEEDED, BACKUP_TIMER
from mlplatform.files import atomic

STATE = Path("/state")
"""Mount point of the volume."""
HEARTBEAT = Path("/tmp/heartbeat")  # noqa: S108 a volume of the backups; the health check of compose/backup.yaml
"""File that is touched while the timer works."""

_RETRY_SECONDS = 3600.0

_TICK_SECONDS = 10.0


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


def run(interval: float, command: Sequence[str]) -> None:
    """Make backups until the process is ended.

    Args:
        interval: seconds between a complete backup and the next one.
        command: makes a backup, and records that it succeeded.
    """
    timer_started()
    tried = 0.0
    while True:
        tried = turn(interval, command, tried)
        time.sleep(_TICK_SECONDS)


def turn(interval: float, command: Sequence[str], tried: float) -> float:
    """Make a backup, if one is due; return the time of the last attempt, which was at `tried` before."""
    HEARTBEAT.touch()
    now = time.time()
    if now < due(last_success(), tried, interval):
        return tried
    status = _backup(command)
    result = f"failed with exit code {status}" if status else "is complete"
    moment = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(due(last_success(), now, interval)))
    print(f"The backup {result}; the next one begins at {moment}.", file=sys.stderr, flush=True)
    return now


def due(succeeded: float, tried: float, interval: float) -> float:
    """Return the time of the next attempt: an hour after a failed one, and sooner if the interval is shorter."""
    return max(succeeded + interval, tried + min(interval, _RETRY_SECONDS))


def _backup(command: Sequence[str]) -> int:
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            while True:
                HEARTBEAT.touch()
                try:
                    return process.wait(_TICK_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            # The timer is being stopped: the backup undoes what it has changed in the buckets.
            process.terminate()
