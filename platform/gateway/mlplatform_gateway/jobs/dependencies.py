"""Jobs that start after others: held until these have succeeded, cancelled if one has not.

What follows the end of a job is part of the transaction that ends it, so nothing is started twice or forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from sqlalchemy import Text, cast, func, select, update
from sqlalchemy.orm import Session

from mlplatform_gateway.errors import DependencyError, NoSuchJobError
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import State, Transition
from mlplatform_gateway.notify.store import Event, announce
from mlplatform_gateway.usage.schema import UsageRow

_LOCK = 4251
"""Number of the lock of `lock_ends`, the only advisory one in the gateway's database."""


def hold(session: Session, job: JobRow) -> None:
    """Hold a job that has never run until the jobs that it names have succeeded, unless they have.

    Raises:
        NoSuchJobError: one of them does not exist.
        DependencyError: one of them has ended otherwise, or is a schedule, which never ends.
    """
    # Everybody sees every job. Of deleted ones, only a job that was held before has the id.
    named = select(JobRow.id, JobRow.state).where(JobRow.id.in_(job.after)).order_by(JobRow.sequence)
    found = {name: State(state) for name, state in session.execute(named)}
    for name in job.after:
        if name not in found:
            raise NoSuchJobError(f"Job {name} does not exist, so no job can start after it.")
        if found[name] in (State.FAILED, State.STOPPED, State.SCHEDULED):
            raise DependencyError(f"Job {name} is {found[name]}, so no job starts after it; name one that succeeds.")
    _await(job, [name for name, state in found.items() if state is not State.SUCCEEDED])


def end_job(session: Session, job: JobRow, transition: Transition) -> None:
    """End a job, and release or cancel those that start after it."""
    _end(job, transition)
    if transition.state is not State.SUCCEEDED:
        _cancel_followers(session, job)
        return
    for follower in _followers(session, job.id):
        states = select(JobRow.id).where(JobRow.id.in_(follower.after), JobRow.state != State.SUCCEEDED)
        _await(follower, session.scalars(states.order_by(JobRow.sequence)))
        if follower.state == State.WAITING:
            arrive(session, follower)


def rename(session: Session, job_id: str, hidden_id: str) -> None:
    """Let the jobs that are held for others too still name one that has succeeded, and is deleted."""
    for follower in _followers(session, job_id):
        follower.after = [hidden_id if name == job_id else name for name in follower.after]


def lock_ends(session: Session) -> None:
    """Let one transaction at a time hold, end or rename jobs, on Postgres; called before it locks any row.

    A job that ends releases others whose numbers are lower or higher than its own, so rows have no order for locks.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(_LOCK)))


def arrive(session: Session, job: JobRow) -> None:
    """Give a job a new number in the order of arrival, also in the ledger, and a new time of arrival.

    With its former number, a job that was held or had ended would precede jobs that have waited meanwhile.
    """
    number = _next_number(session)
    session.execute(update(UsageRow).where(UsageRow.job == job.sequence).values(job=number))
    job.sequence = number
    job.resumed = job.not_before = datetime.now(UTC)


def _cancel_followers(session: Session, job: JobRow) -> None:
    """Cancel the jobs that start after one that has ended without success, and those after them."""
    ended = [job]
    for other in ended:  # which grows
        for follower in _followers(session, other.id):
            message = f"Job was cancelled, because job {other.id}, after which it would start, is {other.state}."
            _end(follower, Transition(State.STOPPED, message))
            ended.append(follower)


def _end(job: JobRow, transition: Transition) -> None:
    job.state, job.message, job.ended = transition.state, transition.message, datetime.now(UTC)
    job.claim = None
    announce(job, Event.ENDED, job.state, job.ended)


def _await(job: JobRow, others: Iterable[str]) -> None:
    """Hold a job until others have succeeded; let it wait for resources if there are none."""
    names = ", ".join(others)
    job.state = State.HELD if names else State.WAITING
    job.message = f"The job starts after {names}." if names else "Job has not started yet."


def _followers(session: Session, job_id: str) -> list[JobRow]:
    """Return the held jobs that name a job."""
    names = cast(JobRow.after, Text).contains(f'"{job_id}"', autoescape=True)
    held = select(JobRow).where(JobRow.ended.is_(None), JobRow.state == State.HELD, names)
    found = session.scalars(held.order_by(JobRow.sequence))
    return [job for job in found if job_id in job.after]  # SQLite compares letters of any case as equal


def _next_number(session: Session) -> int:
    if session.get_bind().dialect.name == "postgresql":
        numbers = func.pg_get_serial_sequence(JobRow.__tablename__, "sequence")
        return int(session.execute(select(func.nextval(numbers))).scalar_one())
    return (session.scalar(select(func.max(JobRow.sequence))) or 0) + 1
