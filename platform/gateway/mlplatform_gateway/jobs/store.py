"""Jobs in the gateway's database: each step of a job is one transaction, so that a crash never leaves half a step."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import and_, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, joinedload

from mlplatform_gateway.audit.store import PLATFORM, Actor, record
from mlplatform_gateway.database.engine import Store, connect, transaction
from mlplatform_gateway.errors import JobExistsError, JobIsOpenError, NoSuchJobError
from mlplatform_gateway.jobs.decisions import leaving_of
from mlplatform_gateway.jobs.dependencies import end_job, hold, lock_ends, rename
from mlplatform_gateway.jobs.details import redacted
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.states import (
    Outcome,
    RestartCounts,
    State,
    Transition,
    Verdict,
    after_notice,
    end_of,
    next_state,
)
from mlplatform_gateway.jobs.submission import requested
from mlplatform_gateway.notify.store import Event, announce
from mlplatform_gateway.packages.store import package_names
from mlplatform_gateway.usage import ledger
from mlplatform_gateway.usage.schema import UsageRow

RUNNING_MESSAGE = "Job is currently running."

_ANNOUNCED = {Outcome.LOST: Event.LOST, Outcome.PREEMPTED: Event.LEFT}

_REPEATABLE = timedelta(days=7)
"""Time after the end of a job for which its package is kept."""


def now() -> datetime:
    """Return the present time; the database stores times with their zone."""
    return datetime.now(UTC)


class JobStore(Store):
    """Jobs and attempts in a database.

    Every method raises UnreachableError while the database is unavailable; then nothing has changed.

    Args:
        url: SQLAlchemy URL of Postgres or SQLite; `migrations.upgrade` creates the tables.
    """

    def __init__(self, url: str) -> None:
        super().__init__(connect(url))

    @transaction
    def ping(self, session: Session) -> None:
        """Check that the database answers."""
        session.execute(select(1))

    # --- Requests ---

    @transaction
    def add(self, session: Session, job: JobRow, actor: Actor = PLATFORM) -> None:
        """Store a new job.

        Raises:
            JobExistsError: its id is in use.
            NoSuchJobError, DependencyError: a job after which it starts does not exist, or has not succeeded.
        """
        if job.after:
            lock_ends(session)
            hold(session, job)
        try:
            session.add(job)
            session.flush()
        except IntegrityError as error:
            raise JobExistsError(
                f"Job with submission_id {job.id} already exists. Please use a different submission_id."
            ) from error
        record(session, actor, "submit", f"job {job.id}", after=job.facts)

    @transaction
    def get(self, session: Session, job_id: str) -> JobRow:
        """Return a job by its submission id, or by the id that Ray gave one of its drivers.

        Raises:
            NoSuchJobError: no job has the id.
        """
        return find_job(session, job_id)

    @transaction
    def request_stop(self, session: Session, job_id: str, actor: Actor = PLATFORM) -> tuple[bool, JobRow]:
        """Record the request to stop a job, which has then stopped if it has no open attempt.

        Return False if it had already ended, else True; and the job.

        Raises:
            NoSuchJobError: no job has the id.
        """
        lock_ends(session)
        job = find_job(session, job_id, lock=True)
        if State(job.state).final:
            return False, job
        first, before = not job.stop_requested, job.progress
        job.stop_requested = True
        if job.open_attempt is None:
            end_job(session, job, Transition(State.STOPPED, "Job was intentionally stopped."))
        if first:
            record(session, actor, "stop", f"job {job.id}", before, job.progress)
        return True, job

    @transaction
    def delete(self, session: Session, job_id: str, actor: Actor = PLATFORM) -> JobRow:
        """Delete the attempts of an ended job and hide its row, which frees its id; return the job as it was.

        Raises:
            JobIsOpenError: it has not ended.
            NoSuchJobError: no job has the id.
        """
        lock_ends(session)
        job = find_job(session, job_id, lock=True)
        if not State(job.state).final:
            raise JobIsOpenError(job.id, State(job.state).of_ray)
        before = {**job.facts, "state": job.state, "attempts": len(job.attempts)}
        _hide(session, job)
        record(session, actor, "delete", f"job {job.id}", before)
        return job

    # --- Steps of the reconciler ---

    @transaction
    def open_jobs(self, session: Session) -> Sequence[JobRow]:
        """Return the jobs that have not ended, in the order of arrival, without schedules, which never run."""
        # One statement: between two, a job may end, and would then look open without an open attempt.
        jobs = select(JobRow).options(joinedload(JobRow.attempts))
        is_open = (JobRow.ended.is_(None), JobRow.state != State.SCHEDULED)
        return session.scalars(jobs.where(*is_open).order_by(JobRow.sequence)).unique().all()

    @transaction
    def begin_attempt(
        self, session: Session, job_id: str, borrowed: bool = False, grace_s: float | None = None
    ) -> AttemptRow | None:
        """Store a new attempt, beyond its team's share or not, before Ray gets it; None if the job no longer waits."""
        job = find_job(session, job_id, lock=True)
        if not State(job.state).waits:
            return None
        number = len(job.attempts) + 1
        name = f"{job.id}--{number}-{secrets.token_hex(3)}"
        attempt = AttemptRow(job_id=job.id, number=number, ray_submission_id=name, created=now(), grace_s=grace_s)
        job.attempts.append(attempt)
        owner = {"user": job.user, "person": job.person, "team": job.team, "token": job.token}
        row = UsageRow(job=job.sequence, attempt=number, job_id=job.id, **owner)
        ledger.begin(session, row, requested(job), attempt.created, borrowed)
        job.state, job.claim = State.STARTING, None
        if number == 1:
            job.message = "Job has not started yet. It may be waiting for the runtime environment to be set up."
        return attempt

    @transaction
    def accepted(self, session: Session, job_id: str, number: int) -> None:
        """Record that Ray has confirmed an attempt."""
        session.get_one(AttemptRow, (job_id, number)).accepted = True

    @transaction
    def seen(self, session: Session, job_id: str, number: int, ray: dict[str, Any], node: str | None) -> None:
        """Store Ray's details of an open attempt."""
        job = find_job(session, job_id, lock=True)
        attempt = session.get_one(AttemptRow, (job_id, number))
        if attempt.ended is not None:
            return
        attempt.accepted = True
        attempt.node_id, attempt.node = ray["driver_node_id"], node or attempt.node
        attempt.agent = ray["driver_agent_http_address"]
        attempt.ray_job_id, attempt.driver = ray["job_id"], ray["driver_info"]
        if ray["status"] == "RUNNING" and not attempt.running:
            attempt.running = True
            if job.state == State.STARTING:
                job.state = State.RUNNING
                job.message = RUNNING_MESSAGE if number == 1 else f"Job is running again. {job.message}"

    @transaction
    def end_attempt(
        self,
        session: Session,
        job_id: str,
        number: int,
        verdict: Verdict,
        ray: dict[str, Any] | None,
        resumes: bool,
        died: datetime | None = None,
    ) -> Transition | None:
        """Store an attempt's end and the transition of its job, which is returned; None if that was done before.

        Args:
            ray: Ray's details of it; None if Ray does not know it.
            resumes: the job continues from a checkpoint when it is started again.
            died: death of the driver's node; None if the node is alive.
        """
        lock_ends(session)
        job = find_job(session, job_id, lock=True)
        attempt = session.get_one(AttemptRow, (job_id, number))
        if attempt.ended is not None:
            return None
        return _advance(session, job, _end_attempt(session, job, attempt, verdict, ray, died), resumes)

    @transaction
    def set_message(self, session: Session, job_id: str, message: str, state: State) -> None:
        """Change the message of a job if it is still in the given state."""
        job = find_job(session, job_id, lock=True)
        if job.state == state:
            job.message = message

    # --- Housekeeping ---

    @transaction
    def unclosed(self, session: Session) -> Sequence[int]:
        """Return the sequence numbers of ended jobs, and of jobs with ended attempts, whose runs are still open."""
        lost = JobRow.attempts.any(and_(AttemptRow.ended.is_not(None), AttemptRow.runs_closed.is_(False)))
        ended = and_(JobRow.ended.is_not(None), JobRow.runs_closed.is_(False))
        kept = select(JobRow.sequence).where(JobRow.deleted.is_(None), or_(ended, lost))
        return session.scalars(kept.order_by(JobRow.sequence)).all()

    @transaction
    def by_sequence(self, session: Session, sequence: int) -> JobRow | None:
        """Return a job by its sequence number, which no other job ever gets; None if it was deleted."""
        job = session.get(JobRow, sequence)
        return job if job is None or job.deleted is None else None

    @transaction
    def runs_closed(self, session: Session, sequence: int, attempts: Iterable[int], job_too: bool) -> None:
        """Record that the runs of a job, named by its sequence number, were ended."""
        job = session.get(JobRow, sequence)
        if job is None:
            return
        for attempt in job.attempts:
            if attempt.number in attempts:
                attempt.runs_closed = True
        job.runs_closed = job_too

    @transaction
    def left_in_ray(self, session: Session, keep: int) -> Sequence[str]:
        """Return Ray's submission ids of ended attempts except the latest `keep`; at most 50 per call."""
        ended = select(AttemptRow.ray_submission_id).where(AttemptRow.ended.is_not(None), AttemptRow.in_ray.is_(True))
        return session.scalars(ended.order_by(AttemptRow.ended.desc()).offset(keep).limit(50)).all()

    @transaction
    def gone_from_ray(self, session: Session, ray_submission_id: str) -> None:
        """Record that Ray's record of an attempt was deleted."""
        its = AttemptRow.ray_submission_id == ray_submission_id
        session.execute(update(AttemptRow).where(its).values(in_ray=False))

    @transaction
    def packages(self, session: Session) -> set[str]:
        """Return the names of the packages that jobs need."""
        # Others may be resumed or repeated for some days.
        lately = and_(JobRow.ended > now() - _REPEATABLE, JobRow.deleted.is_(None))
        needs = or_(JobRow.ended.is_(None), lately)
        environments = session.scalars(select(JobRow.runtime_env).where(needs))
        return {name for environment in environments for name in package_names(environment)}

    @transaction
    def job_of(
        self, session: Session, ray_submission_id: str | None = None, ray_job_id: str | None = None
    ) -> str | None:
        """Return the id of the job with a driver's log (by Ray's submission id) or a worker's (by Ray's job id)."""
        which = AttemptRow.ray_job_id == ray_job_id
        if ray_submission_id:
            which = AttemptRow.ray_submission_id == ray_submission_id
        return session.scalars(select(AttemptRow.job_id).where(which).order_by(AttemptRow.created.desc())).first()

    @transaction
    def ends(self, session: Session) -> tuple[dict[str, datetime], set[str]]:
        """Return the last end of each id that an ended job has, or had if it is deleted, and the ids of open jobs."""
        rows = session.execute(select(JobRow.id, JobRow.sequence, JobRow.ended, JobRow.deleted)).all()
        ended: dict[str, datetime] = {}
        for job_id, sequence, end, deleted in rows:
            if end is not None:
                known = job_id.removesuffix(f"~{sequence}") if deleted else job_id
                ended[known] = max(end, ended.get(known, end))
        return ended, {job_id for job_id, _, end, _ in rows if end is None}


def find_job(session: Session, job_id: str, lock: bool = False) -> JobRow:
    """Return a job by its submission id, or by the id that Ray gave one of its drivers.

    Raises:
        NoSuchJobError: no job has the id.
    """
    if "\0" in job_id:  # Postgres' driver would raise an error that names neither job nor cause
        raise NoSuchJobError(f"Job {job_id!r} does not exist")
    query = select(JobRow).where(JobRow.id == job_id, JobRow.deleted.is_(None))
    job = session.scalars(query.with_for_update() if lock else query).one_or_none()
    if job is None:
        drivers = select(AttemptRow.job_id).where(AttemptRow.ray_job_id == job_id)
        found = session.scalars(drivers.order_by(AttemptRow.created.desc())).first()
        if found is None:
            raise NoSuchJobError(f"Job {job_id} does not exist")
        return find_job(session, found, lock)
    return job


def _end_attempt(
    session: Session,
    job: JobRow,
    attempt: AttemptRow,
    verdict: Verdict,
    ray: dict[str, Any] | None,
    died: datetime | None,
) -> Verdict:
    """Write an attempt's end into its row and the ledger; return the verdict, its reason with the job's own id."""
    if ray is not None:
        attempt.node_id, attempt.agent = ray["driver_node_id"], ray["driver_agent_http_address"]
        attempt.ray_job_id = ray["job_id"] or attempt.ray_job_id
        attempt.driver = ray["driver_info"] or attempt.driver
    verdict = after_notice(verdict, leaving_of(job, attempt))
    # Postgres cannot store NUL, which a script may print.
    reason = verdict.reason.replace(attempt.ray_submission_id, attempt.job_id).replace("\0", "")
    attempt.ended = now()
    attempt.outcome, attempt.reason, attempt.exit_code = verdict.outcome, reason, verdict.exit_code
    ended = end_of(ray, died, attempt.ended)
    ledger.end(session, job.sequence, attempt.number, ended, attempt.ended, verdict.outcome)
    return replace(verdict, reason=reason)


def _advance(session: Session, job: JobRow, verdict: Verdict, resumes: bool) -> Transition:
    """Write into the row of a job what follows the end of its attempt."""
    restarts = job.losses, job.max_restarts_on_loss, job.failures, job.max_restarts_on_failure
    count = RestartCounts(len(job.attempts), *restarts)
    transition = next_state(verdict, count, job.stop_requested, resumes)
    job.losses += verdict.outcome is Outcome.LOST
    job.failures += verdict.outcome is Outcome.FAILED
    job.preemptions += verdict.outcome is Outcome.PREEMPTED
    if transition.state.final:
        job.exit_code, job.error_type = verdict.exit_code, verdict.error_type
        end_job(session, job, transition)
    else:
        job.state, job.message = transition.state, transition.message
        job.not_before = now() + timedelta(seconds=transition.delay_s)
        if verdict.outcome in _ANNOUNCED:
            announce(job, _ANNOUNCED[verdict.outcome], State(job.state).of_ray, now())
    return transition


def _hide(session: Session, job: JobRow) -> None:
    """Delete the attempts of a job and keep its row, under an id that no submission can have.

    Ray accepts the id of a deleted job again. Variables may be secrets, so their values are not kept.
    """
    hidden_id = f"{job.id}~{job.sequence}"
    rename(session, job.id, hidden_id)
    for attempt in job.attempts:
        session.delete(attempt)
    session.flush()  # on Postgres, attempts refer to the id
    hidden = {"id": hidden_id, "deleted": now(), "runtime_env": redacted(job.runtime_env)}
    session.execute(update(JobRow).where(JobRow.origin == job.id).values(origin=hidden_id))
    # A statement, so that the object remains as it was.
    statement = update(JobRow).where(JobRow.sequence == job.sequence).values(hidden)
    session.execute(statement, execution_options={"synchronize_session": False})
