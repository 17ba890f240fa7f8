"""Starts of attempts that may hang: those that Ray lists as pending for too long."""

from __future__ import annotations

import time

from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.store import now

_STRANDED_SECONDS = 60.0

_STOP_START_SECONDS = 5.0
"""Time in which Ray must follow a stop of an attempt that has not started: a start in a made environment takes 3 s."""


class HangingStarts:
    """Memory of when each pending attempt was examined, and first seen with a requested stop, by its id at Ray.

    It is kept until the process ends: few attempts are pending for so long.

    Args:
        start_seconds: time in which Ray must start an attempt.
    """

    def __init__(self, start_seconds: float) -> None:
        self._start_seconds = start_seconds
        self._sought: dict[str, float] = {}
        self._stopped: dict[str, float] = {}

    def reason(self, job: JobRow, attempt: AttemptRow) -> str | None:
        """Return why a pending attempt is not waited for any longer; None if it is."""
        if (now() - attempt.created).total_seconds() > self._start_seconds:
            return (
                f"Ray did not start the job within {self._start_seconds:g} s (JOB_START_SECONDS); check its packages "
                "and its runtime environment, and submit it again."
            )
        name, present = attempt.ray_submission_id, time.monotonic()
        waited = job.stop_requested and present - self._stopped.setdefault(name, present) > _STOP_START_SECONDS
        return "Ray did not stop the job's start." if waited else None

    def may_be_stranded(self, attempt: AttemptRow) -> bool:
        """Return whether an attempt has been pending for so long that its supervisor should be looked up."""
        last = self._sought.get(attempt.ray_submission_id, float("-inf"))
        old = (now() - attempt.created).total_seconds() > _STRANDED_SECONDS
        if not old or time.monotonic() - last < _STRANDED_SECONDS:
            return False
        self._sought[attempt.ray_submission_id] = time.monotonic()
        return True
