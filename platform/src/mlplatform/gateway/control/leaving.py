"""Departure of jobs that give back what they have borrowed: the notice, the signal, and the claims on their room."""

from __future__ import annotations

import math
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

import anyio.to_thread
from sqlalchemy import Engine

from mlplatform.gateway.control.containment import JobErrors, unless_log_unavailable
from mlplatform.gateway.jobs.notices import Notices
from mlplatform.gateway.jobs.schema import AttemptRow, JobRow
from mlplatform.gateway.logs.store import JobLogs
from mlplatform.gateway.upstream.ray import RayHead
from mlplatform.scheduling.queue import Action, Ask, Hold, Release, Rules
from mlplatform.storage import notice

_AGAIN_SECONDS = 5.0

_STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""Variable of the supervisor of a job: seconds between SIGTERM and SIGKILL."""


class Departures:
    """Execution of the planner's requests to leave.

    Args:
        engine: the gateway's database.
        rules: durations that apply.
    """

    def __init__(self, engine: Engine, head: RayHead, logs: JobLogs, errors: JobErrors, rules: Rules) -> None:
        self._notices = Notices(engine)
        self._head = head
        self._logs = logs
        self._errors = errors
        self._rules = rules
        self._told: dict[str, float] = {}

    def variables(self, job: JobRow, teams: int) -> dict[str, str]:
        """Return the variables of an attempt that may be asked to leave: none without a team or a limit.

        Args:
            job: its job.
            teams: number of teams that administrators have added.
        """
        if not teams and job.limit_s is None:
            return {}
        grace = f"{self._rules.grace_s:g}"
        return {"MLPLATFORM_GRACE_SECONDS": grace, _STOP_WAIT: str(math.ceil(self._rules.grace_s))}

    async def execute(self, actions: Sequence[Action]) -> None:
        """Store the notices and claims of a plan; the next steps of the control loop deliver the notices.

        Raises:
            UnreachableError: the database is unavailable.
        """
        for action in actions:
            match action:
                case Ask():
                    with self._errors.contained(action.job):
                        await self._notices.ask(action)
                case Hold():
                    with self._errors.contained(action.claim.job):
                        await self._notices.hold(action.claim)
                case Release():
                    await self._notices.release(action.job)

    def work(self, job: JobRow, attempt: AttemptRow) -> Coroutine[Any, Any, None] | None:
        """Return the work that tells an attempt which has not ended, again or for the first time, to leave."""
        if attempt.leave_by is None or job.stop_requested:
            return None
        told = self._told.get(attempt.ray_submission_id, float("-inf"))
        return self._tell(job, attempt) if time.monotonic() - told > _AGAIN_SECONDS else None

    async def _tell(self, job: JobRow, attempt: AttemptRow) -> None:
        """Deliver the notice of an attempt: as a file to its trainings, in its log, and as SIGTERM; may be repeated.

        Raises:
            UnreachableError: Ray's head or the storage is unavailable.
        """
        if attempt.ray_submission_id not in self._told and attempt.leave_by is not None:
            given = notice.Notice(attempt.number, attempt.leave_by.timestamp(), attempt.leave_why or "")
            await anyio.to_thread.run_sync(notice.give, job.id, given)
            await unless_log_unavailable(self._logs.note(job.id, job.message))
        self._told[attempt.ray_submission_id] = time.monotonic()
        await self._head.stop(attempt.ray_submission_id)

    def forget_all_but(self, active: Iterable[AttemptRow]) -> None:
        """Forget the attempts that have ended."""
        if self._told:
            self._told = {
                attempt.ray_submission_id: self._told[attempt.ray_submission_id]
                for attempt in active
                if attempt.ray_submission_id in self._told
            }
