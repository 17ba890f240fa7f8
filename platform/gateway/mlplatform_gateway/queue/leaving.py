"""Departure of jobs that give back what they have borrowed: the notice and the signal."""

from __future__ import annotations

import math
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import anyio.to_thread

from mlplatform.errors import PlatformError, UnreachableError
from mlplatform.storage import notice
from mlplatform_gateway.jobs.containment import unless_log_unavailable
from mlplatform_gateway.jobs.decisions import Decisions
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.queue.planner.queue import Action, Preempt, Reserve

_AGAIN_SECONDS = 5.0


class Departures:
    """Execution of the planner's preemptions; none while jobs cannot save their state.

    It raises UnreachableError while Ray's head, the storage or the database is unavailable.
    """

    def __init__(self, services: Services) -> None:
        self._decisions = Decisions(services.store.engine)
        self._services = services
        self._told: dict[str, float] = {}
        """Times by the attempt's id at Ray; kept until the process ends, as few attempts are asked to leave."""

    async def execute(self, actions: Sequence[Action]) -> None:
        """Store the notices and reservations of a plan; the next steps of the control loop deliver the notices.

        While the storage or the like is unavailable, nobody is preempted, because nobody could save.
        """
        if self._services.outages.now():
            return
        for action in actions:
            with self._services.errors.contained(action.job):
                match action:
                    case Preempt():
                        await self._decisions.preempt(action)
                    case Reserve():
                        await self._decisions.reserve(action)

    def work(self, job: JobRow, attempt: AttemptRow) -> Coroutine[Any, Any, None] | None:
        """Return the work that tells an attempt which has not ended, again or for the first time, to leave."""
        if attempt.leave_by is None or job.stop_requested:
            return None
        told = self._told.get(attempt.ray_submission_id, float("-inf"))
        return self._tell(job, attempt) if time.monotonic() - told > _AGAIN_SECONDS else None

    async def _tell(self, job: JobRow, attempt: AttemptRow) -> None:
        """Deliver the notice of an attempt: as a file to its trainings, in its log, and as SIGTERM; may be repeated."""
        if attempt.ray_submission_id not in self._told and attempt.leave_by is not None:
            given = notice.Notice(attempt.number, attempt.leave_by.timestamp(), attempt.leave_why or "")
            try:
                await anyio.to_thread.run_sync(notice.give, job.id, given)
            except PlatformError as error:
                # Until its time is over, a training may still learn of it; then the job must leave anyway.
                if now() < attempt.leave_by:
                    raise UnreachableError(f"Job {job.id} cannot be asked to leave: {error}") from error
            await unless_log_unavailable(self._services.logs.note(job.id, job.message))
        self._told[attempt.ray_submission_id] = time.monotonic()
        await self._services.head.stop(attempt.ray_submission_id)


def variables(attempt: AttemptRow) -> dict[str, str]:
    """Return the variables of an attempt that may be asked to leave, for its programs and for Ray's supervisor of it.

    The supervisor waits between SIGTERM and SIGKILL.
    """
    if attempt.grace_s is None:
        return {}
    wait = str(math.ceil(attempt.grace_s))
    return {"MLPLATFORM_GRACE_SECONDS": f"{attempt.grace_s:g}", "RAY_JOB_STOP_WAIT_TIME_S": wait}
