"""Timer of the service `backup-timer`: a backup whenever the last complete one is older than the interval.

Each backup is a process of its own, so that between two backups only this small one remains in memory.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mlplatform_stack.backup import marks

HEARTBEAT = Path("/tmp/heartbeat")  # noqa: S108 a volume of the backups; the health check of compose/backup.yaml
"""File that is touched while the timer works."""

_RETRY_SECONDS = 3600.0

_TICK_SECONDS = 10.0


def run(interval: float, command: Sequence[str]) -> None:
    """Make backups until the process is ended.

    Args:
        interval: seconds between a complete backup and the next one.
        command: makes a backup, and records that it succeeded.
    """
    marks.timer_started()
    tried = 0.0
    while True:
        tried = turn(interval, command, tried)
        time.sleep(_TICK_SECONDS)


def turn(interval: float, command: Sequence[str], tried: float) -> float:
    """Make a backup, if one is due; return the time of the last attempt, which was at `tried` before."""
    HEARTBEAT.touch()
    now = time.time()
    if now < due(marks.last_success(), tried, interval):
        return tried
    status = _backup(command)
    result = f"failed with exit code {status}" if status else "is complete"
    moment = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(due(marks.last_success(), now, interval)))
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
