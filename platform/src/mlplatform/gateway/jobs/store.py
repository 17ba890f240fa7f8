"""The gateway's memory in a database: each step of a job is one transaction, so that a crash falls between two."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio.to_thread
from sqlalchemy import Engine, Row, and_, create_engine, or_, select
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from mlplatform.errors import UnreachableError
from mlplatform.gateway.errors import JobExistsError, JobIsOpenError, NoSuchJobError
from mlplatform.gateway.jobs.packages import package_names
from mlplatform.gateway.jobs.schema import AttemptRow, JobRow, NodeRow
from mlplatform.gateway.jobs.states import Outcome, RestartCounts, State, Transition, Verdict, next_state
from mlplatform.scheduling.resources import Node

RUNNING_MESSAGE = "Job is currently running."

_CONNECT_SECONDS = 3

_POOL = 8

_LISTED_OF_JOBS = (
    *(JobRow.id, JobRow.state, JobRow.entrypoint, JobRow.message, JobRow.error_type, JobRow.created, JobRow.ended),
    *(JobRow.job_metadata, JobRow.runtime_env, JobRow.exit_code),
)

_LISTED_OF_ATTEMPTS = (
    AttemptRow.job_id,
    AttemptRow.ray_job_id,
    AttemptRow.driver,
    AttemptRow.agent,
    AttemptRow.node_id,
)

_P = ParamSpec("_P")

_T = TypeVar("_T")


@dataclass(frozen=True)
class Ended:
    """An attempt that was judged, and what becomes of its job."""

    attempt: int
    verdict: Verdict
    transition: Transition


def now() -> datetime:
    """The present; the database keeps times with their zone."""
    return datetime.now(UTC)


def _transaction(
    method: Callable[Concatenate[JobStore, Session, _P], _T],
) -> Callable[Concatenate[JobStore, _P], Coroutine[Any, Any, _T]]:
    """Run a method in a transaction of its own, in a thread, so that the event loop never waits for the database."""

    async def run(self: JobStore, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        def call() -> _T:
            with self._session() as session:
                return method(self, session, *args, **kwargs)

        return await anyio.to_thread.run_sync(call)

    update_wrapper(run, method)
    return run


class JobStore:
    """Jobs and attempts. Every method raises UnreachableError while the database is away; then nothing has changed."""

    def __init__(self, url: str) -> None:
        options: dict[str, Any] = {}
        if url.startswith("postgresql"):
            # A restarted Postgres leaves dead connections behind: each is tried before its use.
            options = {
                "pool_pre_ping": True,
                "pool_size": _POOL,
                "pool_timeout": 10,
                "connect_args": {
                    "connect_timeout": _CONNECT_SECONDS,
                    "options": "-c statement_timeout=30000",
                    # A server that vanishes without a word is noticed after 10 s.
                    "keepalives_idle": 5,
                    "keepalives_interval": 2,
                    "keepalives_count": 3,
                    "tcp_user_timeout": 10000,
                },
            }
        self.engine: Engine = create_engine(url, hide_parameters=True, **options)  # variables of jobs may be secrets

    @contextmanager
    def _session(self) -> Iterator[Session]:
        try:
            with Session(self.engine, expire_on_commit=False) as session, session.begin():
                yield session
        except (OperationalError, InterfaceError, PoolTimeoutError) as error:
            reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
            raise UnreachableError(f"The gateway's database does not answer ({reason}); try again.") from error

    @_transaction
    def ping(self, session: Session) -> None:
        """Nothing, if the database answers."""
        session.execute(select(1))

    # --- What people ask for ---

    @_transaction
    def add(self, session: Session, job: JobRow) -> None:
        """Keep a new job.

        Raises:
            JobExistsError: its id is taken.
        """
        try:
            session.add(job)
            session.flush()
        except IntegrityError as error:
            raise JobExistsError(
                f"Job with submission_id {job.id} already exists. Please use a different submission_id."
            ) from error

    @_transaction
    def get(self, session: Session, job_id: str) -> JobRow:
        """A job by its submission id, or by Ray's id of its last driver."""
        return self._get(session, job_id)

    @_transaction
    def list(self, session: Session) -> Sequence[tuple[Row[Any], Row[Any] | None]]:
        """Columns of all jobs, each with those of its last attempt, in the order of arrival.

        Whole objects of thousands of jobs would take several times as long (`test_a_long_list_is_quick`).
        """
        jobs = session.execute(select(*_LISTED_OF_JOBS).order_by(JobRow.sequence)).all()
        attempts = session.execute(select(*_LISTED_OF_ATTEMPTS).order_by(AttemptRow.number))
        last = {attempt.job_id: attempt for attempt in attempts}
        return [(job, last.get(job.id)) for job in jobs]

    @_transaction
    def request_stop(self, session: Session, job_id: str) -> tuple[bool, JobRow]:
        """Note that a job shall stop; one that nothing runs of has then stopped. False where it had ended before."""
        job = self._get(session, job_id, lock=True)
        if State(job.state).final:
            return False, job
        job.stop_requested = True
        if job.open_attempt is None:
            self._end(job, Transition(State.STOPPED, "Job was intentionally stopped."))
        return True, job

    @_transaction
    def delete(self, session: Session, job_id: str) -> JobRow:
        """Forget an ended job and its attempts.

        Raises:
            JobIsOpenError: it has not ended.
        """
        job = self._get(session, job_id, lock=True)
        if not State(job.state).final:
            raise JobIsOpenError(job.id, State(job.state).of_ray)
        session.delete(job)
        return job

    # --- What the reconciler does ---

    @_transaction
    def open_jobs(self, session: Session) -> Sequence[JobRow]:
        """Jobs that have not ended, in the order of arrival."""
        return session.scalars(select(JobRow).where(JobRow.ended.is_(None)).order_by(JobRow.sequence)).all()

    @_transaction
    def begin_attempt(self, session: Session, job_id: str) -> AttemptRow | None:
        """Write down that a waiting job is started, before Ray hears of it; None where it no longer waits."""
        job = self._get(session, job_id, lock=True)
        if not State(job.state).waits:
            return None
        number = len(job.attempts) + 1
        attempt = AttemptRow(
            job_id=job.id, number=number, ray_submission_id=f"{job.id}--{number}-{secrets.token_hex(3)}", created=now()
        )
        job.attempts.append(attempt)
        job.state = State.STARTING
        if number == 1:
            job.message = "Job has not started yet. It may be waiting for the runtime environment to be set up."
        return attempt

    @_transaction
    def accepted(self, session: Session, job_id: str, number: int) -> None:
        """Ray has confirmed an attempt."""
        session.get_one(AttemptRow, (job_id, number)).accepted = True

    @_transaction
    def seen(self, session: Session, job_id: str, number: int, ray: dict[str, Any], node: str | None) -> None:
        """Take over what Ray says of an attempt that goes on."""
        job = self._get(session, job_id, lock=True)
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

    @_transaction
    def end_attempt(
        self, session: Session, job_id: str, number: int, verdict: Verdict, ray: dict[str, Any] | None, resumes: bool
    ) -> Ended | None:
        """Write an attempt's end and what becomes of its job; None where that was done before."""
        job = self._get(session, job_id, lock=True)
        attempt = session.get_one(AttemptRow, (job_id, number))
        if attempt.ended is not None:
            return None
        if ray is not None:
            attempt.node_id, attempt.agent = ray["driver_node_id"], ray["driver_agent_http_address"]
            attempt.ray_job_id, attempt.driver = (
                ray["job_id"] or attempt.ray_job_id,
                ray["driver_info"] or attempt.driver,
            )
        attempt.ended = now()
        # People know the job by their own id, and Postgres keeps no zero character, which a script may print.
        verdict = replace(verdict, reason=verdict.reason.replace(attempt.ray_submission_id, job.id).replace("\0", ""))
        attempt.outcome, attempt.reason, attempt.exit_code = verdict.outcome, verdict.reason, verdict.exit_code
        count = RestartCounts(job.losses, job.max_restarts_on_loss, job.failures, job.max_restarts_on_failure)
        transition = next_state(verdict, count, job.stop_requested, resumes)
        if verdict.outcome is Outcome.LOST:
            job.losses += 1
        if verdict.outcome is Outcome.FAILED:
            job.failures += 1
        if transition.state.final:
            job.exit_code, job.error_type = verdict.exit_code, verdict.error_type
            self._end(job, transition)
        else:
            job.state, job.message = State.WAITING, transition.message
            job.not_before = now() + timedelta(seconds=transition.delay_s)
        return Ended(number, verdict, transition)

    @_transaction
    def refuse(self, session: Session, job_id: str, number: int, reason: str) -> None:
        """Ray does not take a job at all: the job's own fault, whatever retries it has."""
        job = self._get(session, job_id, lock=True)
        attempt = session.get_one(AttemptRow, (job_id, number))
        if attempt.ended is not None:
            return
        reason = reason.replace("\0", "")
        attempt.ended, attempt.outcome, attempt.reason, attempt.in_ray = now(), Outcome.FAILED, reason, False
        self._end(job, Transition(State.FAILED, reason))

    @_transaction
    def say(self, session: Session, job_id: str, message: str, state: State) -> None:
        """Change the message of a job that is still in a state."""
        job = self._get(session, job_id, lock=True)
        if job.state == state:
            job.message = message

    # --- What is done behind ---

    @_transaction
    def unclosed(self, session: Session) -> Sequence[int]:
        """Sequence numbers of the jobs whose runs, or those of an ended attempt, have not been given their end."""
        lost = JobRow.attempts.any(and_(AttemptRow.ended.is_not(None), AttemptRow.runs_closed.is_(False)))
        ended = and_(JobRow.ended.is_not(None), JobRow.runs_closed.is_(False))
        return session.scalars(select(JobRow.sequence).where(or_(ended, lost)).order_by(JobRow.sequence)).all()

    @_transaction
    def by_sequence(self, session: Session, sequence: int) -> JobRow | None:
        """Return a job by its sequence number, which no other job ever gets; None if it was deleted."""
        return session.get(JobRow, sequence)

    @_transaction
    def runs_closed(self, session: Session, sequence: int, attempts: Iterable[int], job_too: bool) -> None:
        """Record that the runs of a job, named by its sequence number, were ended."""
        job = session.get(JobRow, sequence)
        if job is None:
            return
        for attempt in job.attempts:
            if attempt.number in attempts:
                attempt.runs_closed = True
        job.runs_closed = job_too

    @_transaction
    def left_in_ray(self, session: Session, keep: int) -> Sequence[str]:
        """Ray's ids of ended attempts but for the latest `keep`: its list must not grow with ours."""
        ended = select(AttemptRow.ray_submission_id).where(AttemptRow.ended.is_not(None), AttemptRow.in_ray.is_(True))
        return session.scalars(ended.order_by(AttemptRow.ended.desc()).offset(keep).limit(50)).all()

    @_transaction
    def gone_from_ray(self, session: Session, ray_submission_id: str) -> None:
        """Ray's record of an attempt was removed."""
        attempt = session.scalars(
            select(AttemptRow).where(AttemptRow.ray_submission_id == ray_submission_id)
        ).one_or_none()
        if attempt is not None:
            attempt.in_ray = False

    @_transaction
    def packages(self, session: Session) -> set[str]:
        """Names of the packages that jobs were submitted with."""
        return {
            name for runtime_env in session.scalars(select(JobRow.runtime_env)) for name in package_names(runtime_env)
        }

    @_transaction
    def job_of(
        self, session: Session, ray_submission_id: str | None = None, ray_job_id: str | None = None
    ) -> str | None:
        """The job that a driver's log (by Ray's submission id) or a worker's (by Ray's driver id) belongs to."""
        which = (
            AttemptRow.ray_submission_id == ray_submission_id
            if ray_submission_id
            else AttemptRow.ray_job_id == ray_job_id
        )
        return session.scalars(select(AttemptRow.job_id).where(which).order_by(AttemptRow.created.desc())).first()

    @_transaction
    def remember_nodes(self, session: Session, nodes: Sequence[Node]) -> None:
        """Keep the shapes of the nodes that are alive."""
        for node in nodes:
            if node.alive:
                row = NodeRow(name=node.name, total=dict(node.total), labels=dict(node.labels), seen=now())
                session.merge(row)

    @_transaction
    def remembered_nodes(self, session: Session, within_s: float) -> Sequence[Node]:
        """Nodes that were alive within the last seconds, as lost ones: nothing of them is free."""
        rows = session.scalars(select(NodeRow).where(NodeRow.seen > now() - timedelta(seconds=within_s))).all()
        return [Node(row.name, False, row.total, row.total, row.labels) for row in rows]

    def _get(self, session: Session, job_id: str, lock: bool = False) -> JobRow:
        if "\0" in job_id:  # Postgres' driver would raise what says nothing
            raise NoSuchJobError(f"Job {job_id!r} does not exist")
        query = select(JobRow).where(JobRow.id == job_id)
        job = session.scalars(query.with_for_update() if lock else query).one_or_none()
        if job is None:
            drivers = select(AttemptRow.job_id).where(AttemptRow.ray_job_id == job_id)
            found = session.scalars(drivers.order_by(AttemptRow.created.desc())).first()
            if found is None:
                raise NoSuchJobError(f"Job {job_id} does not exist")
            return self._get(session, found, lock)
        return job

    @staticmethod
    def _end(job: JobRow, how: Transition) -> None:
        job.state, job.message, job.ended = how.state, how.message, now()
