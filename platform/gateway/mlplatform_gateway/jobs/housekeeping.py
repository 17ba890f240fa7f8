"""Housekeeping after jobs: the record of their MLflow runs, the end of these and of actors, and Ray's old records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from mlplatform.errors import AccessError, UnreachableError
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.errors import ForbiddenError
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow, RunRow
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.states import Outcome, State
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.mlflow.client import close_runs, open_runs
from mlplatform_gateway.ray.leftovers import LeftoverActors

_CLOSE_AGAIN_SECONDS = 5.0

_GATHER_SECONDS = 1.0
"""Jobs that end within this time share a search for open runs, which takes MLflow 30 ms of CPU."""

_CLEAN_SECONDS = 30.0

_KEPT_IN_RAY = 100
"""Maximum number of ended attempts left in Ray's own list."""

_RUN_ENDS: dict[State, Literal["FINISHED", "FAILED", "KILLED"]] = {
    State.SUCCEEDED: "FINISHED",
    State.FAILED: "FAILED",
    State.STOPPED: "KILLED",
}


class JobRuns(Store):
    """Record of the jobs' runs at MLflow, as their attempts report them.

    Every method raises UnreachableError while the database is unavailable.
    """

    @transaction
    def report(self, session: Session, job_id: str, attempt: int, run_id: str, own: bool) -> None:
        """Record that an attempt has opened or continued a run; may be repeated.

        Args:
            attempt: number of the job's attempt, which must not have been deleted.
            own: it is the run that all attempts of the job share, once reported so.

        Raises:
            ForbiddenError: another job has reported the run.
        """
        # Locked, because several processes of the attempt may report a run at the same moment.
        session.get_one(AttemptRow, (job_id, attempt), with_for_update=True)
        row = session.get(RunRow, run_id)
        if row is None:
            session.add(RunRow(run_id=run_id, job_id=job_id, attempt=attempt, own=own, reported=now()))
        elif row.job_id != job_id:
            raise ForbiddenError(f"Run {run_id} belongs to another job, so job {job_id} cannot report it.")
        else:
            row.attempt, row.own = max(row.attempt, attempt), row.own or own

    @transaction
    def of(self, session: Session, job_id: str) -> Sequence[RunRow]:
        """Return the runs of a job: its own first, then in the order of the reports."""
        order = (RunRow.own.desc(), RunRow.reported, RunRow.run_id)
        return session.scalars(select(RunRow).where(RunRow.job_id == job_id).order_by(*order)).all()


class Housekeeping:
    """Background work. Each public coroutine is one pass, to be repeated.

    Every pass raises UnreachableError while a service that it needs is unavailable.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._runs = JobRuns(services.store.engine)
        self._leftovers = LeftoverActors(services.head, services.driver_labels)
        self._some_ended = asyncio.Event()

    @property
    def passes(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """All passes."""
        return self.close_runs, self._leftovers.look, self.clean_ray

    def notice_end(self) -> None:
        """End runs and leftover actors now, because an attempt or a job has ended."""
        self._some_ended.set()
        self._leftovers.notice_end()

    async def close_runs(self) -> None:
        """End the MLflow runs of ended attempts and jobs, then wait for the next end and a second more.

        Runs stay open while MLflow is unavailable.
        """
        self._some_ended.clear()
        try:
            unclosed = await self._services.store.unclosed()
            still_open = None
            if unclosed and self._services.tracking:
                with suppress(AccessError):  # reported with each job, below
                    # After the jobs have ended: they open no further runs.
                    still_open = await open_runs(self._services.tracking)
            for sequence in unclosed:
                # Looked up again, because a pass may be long: meanwhile, a new job may have the id of a deleted one.
                if job := await self._services.store.by_sequence(sequence):
                    with self._services.errors.contained(job.id):
                        await self.close_runs_of(job, still_open)
        except UnreachableError:
            await asyncio.sleep(_CLOSE_AGAIN_SECONDS)
            raise
        await self._some_ended.wait()
        await asyncio.sleep(_GATHER_SECONDS)

    async def close_runs_of(self, job: JobRow, still_open: Collection[str] | None = None) -> None:
        """End the MLflow runs of a job or, while the job itself is open, those that only its ended attempts had.

        Args:
            still_open: ids of MLflow's open runs; None to ask for them.
        """
        over = job.ended is not None
        ended = [attempt for attempt in job.attempts if attempt.ended is not None]
        if self._services.tracking is not None and (runs := await self._runs.of(job.id)):
            still_open = await open_runs(self._services.tracking) if still_open is None else still_open
            runs = [run for run in runs if run.run_id in still_open]
            for attempt in ended if not over else []:
                if not attempt.runs_closed:
                    reason = f"Attempt {attempt.number}: {attempt.reason}"
                    end: Literal["FAILED", "KILLED"] = "KILLED" if attempt.outcome == Outcome.PREEMPTED else "FAILED"
                    # The next attempt continues the job's own run.
                    its = [run.run_id for run in runs if run.attempt == attempt.number and not run.own]
                    await close_runs(self._services.tracking, its, end, reason, attempt.number)
            if over:
                all_runs = [run.run_id for run in runs]
                await close_runs(self._services.tracking, all_runs, _RUN_ENDS[State(job.state)], job.message)
        await self._services.store.runs_closed(job.sequence, [attempt.number for attempt in ended], over)

    async def clean_ray(self) -> None:
        """Delete Ray's records of all but the latest 100 ended attempts, then wait 30 s."""
        for ray_submission_id in await self._services.store.left_in_ray(_KEPT_IN_RAY):
            if await self._services.head.delete(ray_submission_id):
                await self._services.store.gone_from_ray(ray_submission_id)
        await asyncio.sleep(_CLEAN_SECONDS)
