"""Tables of the jobs; `migrations/` upgrades them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, ForeignKeyConstraint, Identity, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from mlplatform_gateway.database.engine import Base

_AUDITED_CHARACTERS = 1000
"""Characters of an entry point that the audit log keeps."""


_LATE = timedelta(minutes=1)


class JobRow(Base):
    """A job as it was submitted, and its state."""

    __tablename__ = "jobs"
    # The reconciler reads open jobs only, and the table holds every job since the platform was set up.
    # Of each time of a schedule there is one job, whatever is repeated after a crash.
    __table_args__ = (
        Index("open_jobs", "sequence", postgresql_where=text("ended IS NULL")),
        Index("times_of_schedules", "origin", "due", unique=True),
    )

    sequence: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True)
    """Order of arrival; never reused for another job. A job that is resumed arrives again, and gets a new one."""

    id: Mapped[str] = mapped_column(unique=True)
    """Submission id of the job, as users see it."""

    user: Mapped[str]
    """Name that the submission gives; that of the person if a person's token submitted it."""

    person: Mapped[str | None]
    """Owner; null if the shared token submitted it."""

    team: Mapped[str | None]
    """Team that the owner submitted it for."""

    token: Mapped[str | None]
    """Id of the person's token with which it was submitted, itself or by way of other jobs, or last resumed."""

    entrypoint: Mapped[str]
    runtime_env: Mapped[dict[str, Any]]
    job_metadata: Mapped[dict[str, Any]]
    entrypoint_request: Mapped[dict[str, Any]]
    """Resources and labels that the entry point requests: Ray's fields `entrypoint_*` that were given."""

    workers: Mapped[dict[str, Any] | None]
    """Worker group that the job declares: count, cpus, gpus."""

    wait_for_capacity: Mapped[bool]
    max_restarts_on_loss: Mapped[int]
    """Restarts allowed after a node or Ray was lost."""

    max_restarts_on_failure: Mapped[int]
    """Restarts allowed after a failure of the job itself."""

    limit_s: Mapped[float | None]
    """Time from the start of an attempt after which others may have its resources; null if there is none."""

    job_class: Mapped[str] = mapped_column(default="normal")
    """A `queue.planner.queue.JobClass`, which orders the jobs of a team."""

    group_name: Mapped[str | None]
    """Name that some jobs of its owner have in common; null if none."""

    at_most: Mapped[int | None]
    """Jobs of its group that may run at the same time; null if unlimited."""

    after: Mapped[list[str]] = mapped_column(default=list, server_default="[]")
    """Ids of the jobs that must have succeeded before it starts."""

    schedule: Mapped[str | None]
    """Cron expression by which it submits jobs, and never runs itself; null for other jobs."""

    timezone: Mapped[str | None]
    """Time zone of the schedule."""

    due: Mapped[datetime | None]
    """Of a schedule, its next time, or null while it is paused; of a job that one has submitted, its time."""

    origin: Mapped[str | None]
    """Id of the schedule that has submitted it, or of the job that it repeats with other arguments."""

    state: Mapped[str]
    message: Mapped[str]
    losses: Mapped[int] = mapped_column(default=0)
    failures: Mapped[int] = mapped_column(default=0)
    stop_requested: Mapped[bool] = mapped_column(default=False)
    preemptions: Mapped[int] = mapped_column(default=0)
    """Attempts that left because they were asked to."""

    claim: Mapped[dict[str, Any] | None]
    """Room that other jobs leave for this one, while it waits: `placement`, and `deadline`, by which they do."""

    created: Mapped[datetime]
    resumed: Mapped[datetime | None]
    """Time at which it was last resumed after its end, or no longer held, which is its arrival in the queue."""

    not_before: Mapped[datetime]
    """Earliest time of the next start."""

    ended: Mapped[datetime | None]
    deleted: Mapped[datetime | None]
    """Time of deletion: the row remains, hidden and under another id, for those who look into the database."""

    exit_code: Mapped[int | None]
    error_type: Mapped[str | None]
    runs_closed: Mapped[bool] = mapped_column(default=False)
    attempts: Mapped[list[AttemptRow]] = relationship(
        lazy="selectin", order_by="AttemptRow.number", cascade="all, delete-orphan", passive_deletes=True
    )

    @property
    def since(self) -> datetime:
        """Time since which it waits: that of its arrival in the queue, or of the end of its last attempt."""
        arrived, ended = self.resumed or self.created, self.last_attempt and self.last_attempt.ended
        return max(arrived, ended) if ended else arrived

    @property
    def late(self) -> bool:
        """True if its schedule's time had passed when it was submitted, as the gateway was down or had rejected it."""
        return self.schedule is None and self.due is not None and self.created - self.due > _LATE

    @property
    def facts(self) -> dict[str, Any]:
        """Number, user and command, for the audit log."""
        return {"sequence": self.sequence, "user": self.user, "entrypoint": self.entrypoint[:_AUDITED_CHARACTERS]}

    @property
    def progress(self) -> dict[str, Any]:
        """State and whether it is to stop, for the audit log."""
        return {"state": self.state, "stop_requested": self.stop_requested}

    @property
    def last_attempt(self) -> AttemptRow | None:
        """The attempt that was stored last; None before the first one."""
        return self.attempts[-1] if self.attempts else None

    @property
    def open_attempt(self) -> AttemptRow | None:
        """The attempt that Ray has, or is about to get; None if there is none, or the last one has ended."""
        return self.last_attempt if self.last_attempt and self.last_attempt.ended is None else None


class AttemptRow(Base):
    """One start of a job: a submission to Ray under an id of its own."""

    __tablename__ = "attempts"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    ray_submission_id: Mapped[str] = mapped_column(unique=True)
    created: Mapped[datetime]
    accepted: Mapped[bool] = mapped_column(default=False)
    """Ray has confirmed the submission; until then, the same id is submitted again."""

    running: Mapped[bool] = mapped_column(default=False)
    ended: Mapped[datetime | None]
    outcome: Mapped[str | None]
    reason: Mapped[str | None]
    grace_s: Mapped[float | None]
    """Time that it gets to save its state when it is asked to leave; null if it cannot be asked."""

    leave_by: Mapped[datetime | None]
    """Time at which it is stopped; null if it was not asked to leave."""

    idle_since: Mapped[datetime | None]
    """Time since when its GPUs have done nothing; null while they compute, or if nothing measures them."""

    leave_why: Mapped[str | None]
    """Sentence that says who takes back its resources, and why."""

    leave_fails: Mapped[bool] = mapped_column(default=False)
    """It has to leave through a fault of its own, so that it has failed then."""

    claimant: Mapped[str | None]
    """Id of the job that it leaves for; empty if it has reached its limit."""

    exit_code: Mapped[int | None]
    node_id: Mapped[str | None]
    node: Mapped[str | None]
    """Host name of the driver's node."""

    agent: Mapped[str | None]
    """HTTP address of the agent on the driver's node."""

    ray_job_id: Mapped[str | None] = mapped_column(index=True)
    """Ray's id of the driver, 8 hexadecimal digits."""

    driver: Mapped[dict[str, Any] | None]
    in_ray: Mapped[bool] = mapped_column(default=True)
    """Ray still has a record of the attempt, which must be deleted eventually."""

    runs_closed: Mapped[bool] = mapped_column(default=False)
    # Read when the attempt is deleted, because SQLite does not enforce foreign keys; otherwise `JobRuns` reads them.
    runs: Mapped[list[RunRow]] = relationship(cascade="all, delete-orphan")


class RunRow(Base):
    """A run at MLflow that an attempt has opened, or continued."""

    __tablename__ = "runs"
    __table_args__ = (
        ForeignKeyConstraint(("job_id", "attempt"), ("attempts.job_id", "attempts.number"), ondelete="CASCADE"),
        Index("runs_of_jobs", "job_id"),
    )

    run_id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str]
    attempt: Mapped[int]
    """The last attempt that has reported it."""

    own: Mapped[bool]
    """It is the job's own run, which all attempts share."""

    reported: Mapped[datetime]
    """Time of the first report."""
