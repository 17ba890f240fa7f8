"""Stored decisions on jobs: which attempts are idle, which must leave and for which jobs, and why others wait."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.states import Leaving, State
from mlplatform_gateway.queue.planner.queue import Preempt, Reserve

_BATCH = 1000


class Decisions(Store):
    """Store of the decisions; raises UnreachableError while the database is unavailable."""

    @transaction
    def preempt(self, session: Session, action: Preempt) -> None:
        """Record that a job's open attempt is preempted, unless it already is, or the job is to be stopped."""
        if found := _to_ask(session, action.job):
            job, attempt = found
            attempt.leave_by = datetime.fromtimestamp(action.deadline, UTC)
            attempt.leave_why, attempt.claimant = action.why, action.claimant
            job.message = f"The job has until {attempt.leave_by:%H:%M:%S} UTC to save its state. {action.why}"

    @transaction
    def end(self, session: Session, job_id: str, grace_s: float, why: str) -> None:
        """Record that a job's open attempt has to end as failed, unless it is leaving already.

        Args:
            grace_s: time that it gets to save its state.
            why: sentence for its owner.
        """
        if found := _to_ask(session, job_id):
            job, attempt = found
            attempt.leave_by = datetime.now(UTC) + timedelta(seconds=grace_s)
            attempt.leave_why, attempt.claimant, attempt.leave_fails = why, "", True
            job.message = why

    @transaction
    def idle(self, session: Session, job_id: str, number: int, idle: bool) -> None:
        """Record that the GPUs of an open attempt do nothing from now on, or that they compute."""
        is_open = (AttemptRow.job_id == job_id, AttemptRow.number == number, AttemptRow.ended.is_(None))
        since = datetime.now(UTC) if idle else None
        session.execute(update(AttemptRow).where(*is_open).values(idle_since=since))

    @transaction
    def reserve(self, session: Session, action: Reserve) -> None:
        """Store the room that others leave for a waiting job."""
        job = _open(session, action.job)
        if job is not None and State(job.state).waits:
            placement = {node: dict(amounts) for node, amounts in action.placement.items()}
            job.claim = {"placement": placement, "deadline": action.deadline}

    @transaction
    def explain(self, session: Session, messages: Mapping[str, Collection[int]]) -> None:
        """Change the messages of jobs that still wait, with a statement for all that wait for the same reasons.

        When a job starts, the reasons of thousands may change, and nothing else is decided meanwhile.

        Args:
            messages: sequence numbers of jobs by their message.
        """
        for message, jobs in messages.items():
            numbers = sorted(jobs)
            for first in range(0, len(numbers), _BATCH):
                waiting = JobRow.sequence.in_(numbers[first : first + _BATCH]), JobRow.state == State.WAITING
                session.execute(update(JobRow).where(*waiting).values(message=message))


def reservation_of(job: JobRow) -> Reserve | None:
    """Return the room that others leave for a job; None if there is none."""
    return None if job.claim is None else Reserve(job.id, job.claim["placement"], job.claim["deadline"])


def leaving_of(job: JobRow, attempt: AttemptRow) -> Leaving | None:
    """Return why an attempt leaves; None if it was not asked to, or its job is to be stopped."""
    if attempt.leave_why is None or job.stop_requested:
        return None
    limit_s = None if attempt.claimant or attempt.leave_fails else job.limit_s
    return Leaving(attempt.leave_why, limit_s, attempt.leave_fails)


def _to_ask(session: Session, job_id: str) -> tuple[JobRow, AttemptRow] | None:
    """Return a job and its open attempt; None if it does not run, leaves already, or is to be stopped."""
    job = _open(session, job_id)
    attempt = job.open_attempt if job else None
    if job is None or attempt is None or attempt.leave_by is not None or job.stop_requested:
        return None
    return job, attempt


def _open(session: Session, job_id: str) -> JobRow | None:
    return session.scalars(
        select(JobRow).where(JobRow.id == job_id, JobRow.ended.is_(None)).with_for_update()
    ).one_or_none()
