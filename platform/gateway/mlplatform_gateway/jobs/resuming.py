"""Jobs that are resumed after their end: the same job with the same run, which arrives in the queue again."""

from __future__ import annotations

from sqlalchemy.orm import Session

from mlplatform_gateway.audit.store import PLATFORM, Actor, record
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.errors import NotResumableError
from mlplatform_gateway.jobs.dependencies import arrive, hold, lock_ends
from mlplatform_gateway.jobs.repeats import plan_next
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.store import find_job


class Resumption(Store):
    """Return of ended jobs to the queue; raises UnreachableError while the database is unavailable."""

    @transaction
    def resume(
        self,
        session: Session,
        job_id: str,
        message: str,
        actor: Actor = PLATFORM,
        limit_s: float | None = None,
        token: str | None = None,
    ) -> JobRow:
        """Let a job that was stopped or has failed wait for its next attempt, behind the jobs that wait already.

        Its restarts after losses and failures are counted from the beginning.

        Args:
            limit_s: new time limit of its attempts, in seconds; None keeps the former one.
            token: id of the token by which it is resumed, to which its GPU hours count from now on.

        Raises:
            NoSuchJobError: no job has the id.
            NotResumableError: it is open or has succeeded.
            DependencyError: it has never run, and a job after which it starts has failed or was stopped.
        """
        lock_ends(session)
        job = find_job(session, job_id, lock=True)
        check_resumable(job)
        before = {**job.progress, "limit_s": job.limit_s}
        arrive(session, job)
        job.state, job.message, job.stop_requested = State.WAITING, message, False
        if job.after and not job.attempts:
            hold(session, job)
        if job.schedule:
            plan_next(job, job.not_before)
        job.ended = job.exit_code = job.error_type = None
        job.losses = job.failures = 0
        job.runs_closed, job.token = False, token
        job.limit_s = job.limit_s if limit_s is None else limit_s
        record(session, actor, "resume", f"job {job.id}", before, {**job.progress, "limit_s": job.limit_s})
        session.flush()
        return job


def check_resumable(job: JobRow) -> None:
    """Check that a job has ended without success, or is a schedule that is paused.

    Raises:
        NotResumableError: it is open or has succeeded.
    """
    state = State(job.state)
    if not state.final and not (state is State.SCHEDULED and job.due is None):
        raise NotResumableError(f"Job {job.id} is {state.of_ray}, so there is nothing to resume.")
    if state is State.SUCCEEDED:
        raise NotResumableError(f"Job {job.id} has succeeded, so it is not resumed; submit it again.")
