"""Timer of the service `backup-timer`: a backup whenever the last complete one is older than the interval.

Each backup is a process of its own, so that between two backups only this small one remains in memory.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlplatform.services.backup import marks

HEARTBEAT = Path("/tmp/heartbeat")  # noqa: S108 a volume of the backups; the health check of compose/backup.yaml

_RETRY_SECONDS = 3600.0

_TICK_SECONDS = 10.0


@dataclass
class Timer:
    """Timer of backups.

    Attributes:
        interval: seconds between a complete backup and the next one.
        command: makes a backup, and records that it succeeded.
        state: folder of the records.
        heartbeat: file that is touched while the timer works.
        tried: time of the last attempt.
    """

    interval: float
    command: Sequence[str]
    state: Path = marks.STATE
    heartbeat: Path = HEARTBEAT
    tried: float = 0.0

    def run(self) -> None:
        """Make backups until the process is ended."""
        marks.timer_started(self.state)
        while True:
            self.turn()
            time.sleep(_TICK_SECONDS)

    def turn(self) -> None:
        """Make a backup, if one is due."""
        self.heartbeat.touch()
        now = time.time()
        if now < due(marks.last_success(self.state), self.tried, self.interval):
            return
        self.tried = now
        status = self._backup()
        following = due(marks.last_success(self.state), self.tried, self.interval)
        result = f"failed with exit code {status}" if status else "is complete"
        moment = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(following))
        print(f"The backup {result}; the next one begins at {moment}.", file=sys.stderr, flush=True)

    def _backup(self) -> int:
        with subprocess.Popen(self.command, stdin=subprocess.DEVNULL) as process:
            try:
                while True:
                    self.heartbeat.touch()
                    try:
                        return process.wait(_TICK_SECONDS)
                    except subprocess.TimeoutExpired:
                        continue
            finally:
                # The timer is being stopped: the backup undoes what it has changed in the buckets.
                process.terminate()


def due(succeeded: float, tried: float, interval: float) -> float:
    """Return the time of the next attempt: an hour after a failed one, and sooner if the interval is shorter."""
    return max(succeeded + interval, tried + min(interval, _RETRY_SECONDS))
