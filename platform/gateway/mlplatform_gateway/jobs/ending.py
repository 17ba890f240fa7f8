"""End of attempts, also of starts that hang: the verdict, the rest of the log, the fence, and the job's next state."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import anyio.to_thread

from mlplatform.errors import StorageError
from mlplatform.storage import addresses, fence, notice, objects
from mlplatform.text.advice import advice_in
from mlplatform_gateway.jobs.containment import unless_log_unavailable
from mlplatform_gateway.jobs.decisions import leaving_of
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.states import Outcome, Verdict, after_notice, judge
from mlplatform_gateway.jobs.store import now

_SETTLE_SECONDS = 10.0
_SETTLE_LOST_SECONDS = 2.0
_FINISHED = "Job finished successfully."
_STRANDED_SECONDS = 60.0

_STOP_START_SECONDS = 5.0
"""Time in which Ray must follow a stop of an attempt that has not started: with an existing environment, 3 s."""

_log = logging.getLogger(__name__)


class Finisher:
    """End of attempts, and of jobs with them.

    Every method but `close_log` raises UnreachableError while Ray's head, the storage or the database is unavailable.

    Args:
        on_end: called when an attempt or a job has ended.
    """

    def __init__(self, services: Services, on_end: Callable[[], None]) -> None:
        self._services = services
        self._on_end = on_end

    async def finish(self, job: JobRow, attempt: AttemptRow, ray: dict[str, Any] | None, died: datetime | None) -> None:
        """End an attempt that Ray reports as ended or lost; may be repeated.

        Args:
            ray: Ray's details of the attempt; None if Ray does not know it.
            died: time of death of the driver's node; None if Ray does not list it as dead.
        """
        observed_at = time.time()
        verdict = await self._verdict(attempt, ray, died is not None)
        if verdict is None:
            return
        verdict, advice = advised(await self._after_notice(job, attempt, verdict))
        lost, at_limit = verdict.outcome is Outcome.LOST, verdict.limit_s is not None
        replaced = lost or at_limit or verdict.outcome is Outcome.PREEMPTED
        patience = _SETTLE_LOST_SECONDS if lost else _SETTLE_SECONDS
        await unless_log_unavailable(self._services.logs.settle(job.id, attempt.node, observed_at, timeout_s=patience))
        resumes = replaced and await anyio.to_thread.run_sync(has_checkpoint, job.id)
        if replaced:
            # The attempt may still wake up. The fence is set before the end is stored: from then on the job may be
            # deleted and its id reused.
            await anyio.to_thread.run_sync(fence.allow, job.id, attempt.number + 1)
        ended = await self._services.store.end_attempt(job.id, attempt.number, verdict, ray, resumes, died)
        if ended is None:
            return
        final = ended.state.final
        await self._report(job.id, ended.message if lost or at_limit or not final else advice, final)
        if lost and ray is not None and ray["status"] != "FAILED":
            # Ray forwards the stop if the attempt wakes up again.
            await self._services.head.stop(attempt.ray_submission_id)

    async def give_up(self, job: JobRow, attempt: AttemptRow, ray: dict[str, Any], reason: str) -> None:
        """End an attempt whose start hangs as failed, or as stopped if that was requested; may be repeated.

        Ray's API cannot stop a process that has not started. Ray keeps the request: should the process start after all,
        it stops at once.
        """
        await self._services.head.stop(attempt.ray_submission_id)
        await self._fail(job, attempt, Verdict(Outcome.FAILED, reason), ray)

    async def refuse(self, job: JobRow, attempt: AttemptRow, reason: str) -> None:
        """Fail a job whose attempt Ray rejects."""
        await self._fail(job, attempt, Verdict(Outcome.FAILED, reason, refused=True), None)

    async def _fail(self, job: JobRow, attempt: AttemptRow, verdict: Verdict, ray: dict[str, Any] | None) -> None:
        ended = await self._services.store.end_attempt(job.id, attempt.number, verdict, ray, False)
        if ended is not None:
            await self._report(job.id, ended.message, ended.state.final)

    async def _report(self, job_id: str, note: str | None, final: bool) -> None:
        """Report the end of an attempt in its job's log, and end the log of a job that has ended."""
        self._on_end()
        if note:
            await unless_log_unavailable(self._services.logs.note(job_id, note))
        if final:
            await self.close_log(job_id)

    async def close_log(self, job_id: str) -> None:
        """End the log of a job that has ended, and with it the streams of its followers."""
        await unless_log_unavailable(self._services.logs.close(job_id))

    async def _after_notice(self, job: JobRow, attempt: AttemptRow, verdict: Verdict) -> Verdict:
        """Return the verdict on an attempt that may have been asked to leave, and may have finished nevertheless."""
        leaving = leaving_of(job, attempt)
        if leaving is None or verdict.outcome is not Outcome.STOPPED:
            return after_notice(verdict, leaving)
        try:
            finished = await anyio.to_thread.run_sync(notice.finished, job.id, attempt.number)
        except StorageError as error:
            # Otherwise the attempt would never end: the storage rejects a repeated request, too.
            _log.warning("%s", error)
            finished = False
        return Verdict(Outcome.SUCCEEDED, _FINISHED, exit_code=0) if finished else after_notice(verdict, leaving)

    async def _verdict(self, attempt: AttemptRow, ray: dict[str, Any] | None, node_dead: bool) -> Verdict | None:
        """Judge an attempt; probe its node and the services first if its driver has failed."""
        if ray is None or ray["status"] != "FAILED" or node_dead:
            return judge(ray, node_dead)
        agent = ray["driver_agent_http_address"]
        node_answers, _ = await asyncio.gather(
            self._services.head.node_answers(agent) if agent else asyncio.sleep(0, True), self._services.outages.probe()
        )
        # An outage that was over before the attempt began did not affect it.
        age = (now() - attempt.created).total_seconds()
        return judge(ray, not node_answers, self._services.outages.recent(age))


def advised(verdict: Verdict) -> tuple[Verdict, str | None]:
    """Return the verdict with advice in the last line of its reason, which clients show, and the advice."""
    advice = advice_in(verdict.reason) if verdict.outcome is Outcome.FAILED else None
    return (replace(verdict, reason=f"{verdict.reason.rstrip()} ({advice})"), advice) if advice else (verdict, None)


def has_checkpoint(job_id: str) -> bool:
    """Return whether a job has a checkpoint from which its next attempt continues."""
    return any("/checkpoint_" in file for file in objects.list_files(addresses.checkpoint_uri(job_id=job_id)))


class HangingStarts:
    """Times at which each pending attempt, by its id at Ray, was last examined, and first seen with a requested stop.

    It is kept until the process ends: few attempts are pending for so long.

    Args:
        start_seconds: time in which Ray must start an attempt.
    """

    def __init__(self, start_seconds: float) -> None:
        self._start_seconds = start_seconds
        self._sought: dict[str, float] = {}
        self._stopped: dict[str, float] = {}

    def reason(self, job: JobRow, attempt: AttemptRow) -> str | None:
        """Return why to give up a pending attempt; None to keep waiting."""
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
