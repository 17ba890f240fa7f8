"""Jobs for those who look at the platform: lists for people, and numbers for the metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload

from mlplatform.api.base import MOST_ENTRIES
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.states import Outcome, State
from mlplatform_gateway.jobs.submission import requested

SHOWN = 50
"""Jobs that are shown per list, and as many that come later; a person does not read more."""

ENDED_SHOWN = 20

_LATER = [state for state in State if state.comes_later]

RUNNING = ("job_id", "attempt", "user", "ray_job_id", "node")
"""Labels of a running attempt. Ray labels its own metrics with the driver's id at Ray. The node is the driver's."""


@dataclass(frozen=True)
class ShownJobs:
    """Lists of jobs, each cut to what is shown.

    Attributes:
        running: in the order of arrival; jobs that Ray starts at this moment included.
        waiting: those in `first`, then others in the queue, then held ones and schedules, each in the order of
            arrival.
        ended: the latest first.
        counts: number of all open jobs by state.
    """

    running: Sequence[JobRow]
    waiting: list[JobRow]
    ended: Sequence[JobRow]
    counts: dict[str, int]


@dataclass(frozen=True)
class Totals:
    """Numbers at one moment; deleted jobs do not count.

    Attributes:
        jobs: number of jobs by state and user.
        attempts: number of ended attempts by outcome.
        waiting: resources that the waiting jobs request, by Ray's name of the resource.
        running: values of `RUNNING` of each attempt that Ray runs now.
        open_runs: jobs that have ended, and whose runs the gateway has not ended.
    """

    jobs: Mapping[tuple[str, str], int]
    attempts: Mapping[str, int]
    waiting: Mapping[str, float]
    running: Sequence[Sequence[str]]
    open_runs: int


class JobOverview(Store):
    """Reader of the gateway's database; raises UnreachableError while that is unavailable."""

    @transaction
    def read(self, session: Session, first: Collection[str] = ()) -> ShownJobs:
        """Return the lists as they are now.

        Args:
            first: ids of jobs that are shown before all others if they wait; at most `SHOWN`.
        """
        jobs = select(JobRow).options(joinedload(JobRow.attempts))
        is_open = jobs.where(JobRow.ended.is_(None)).order_by(JobRow.sequence)
        started = [state for state in State if state.has_attempt]
        running = session.scalars(is_open.where(JobRow.state.in_(started)).limit(SHOWN)).unique().all()
        waits = is_open.where(JobRow.state == State.WAITING)
        named = session.scalars(waits.where(JobRow.id.in_(first))).unique().all()
        others = waits.where(JobRow.id.not_in(first)).limit(SHOWN - len(named))
        later = is_open.where(JobRow.state.in_(_LATER)).limit(SHOWN)
        waiting = [*named, *session.scalars(others).unique(), *session.scalars(later).unique()]
        kept = jobs.where(JobRow.ended.is_not(None), JobRow.deleted.is_(None))
        latest = kept.order_by(JobRow.ended.desc()).limit(ENDED_SHOWN)
        ended = session.scalars(latest).unique().all()
        states = select(JobRow.state, func.count().label("number")).where(JobRow.ended.is_(None)).group_by(JobRow.state)
        return ShownJobs(running, waiting, ended, {row.state: row.number for row in session.execute(states)})

    @transaction
    def later(self, session: Session, job_id: str | None = None) -> Sequence[JobRow]:
        """Return held jobs and schedules in the order of arrival, at most 1,000; or one job, if it is one of them."""
        found = select(JobRow).where(JobRow.ended.is_(None), JobRow.state.in_(_LATER)).order_by(JobRow.sequence)
        return session.scalars((found.where(JobRow.id == job_id) if job_id else found).limit(MOST_ENTRIES)).all()

    @transaction
    def totals(self, session: Session) -> Totals:
        """Return the numbers as they are now."""
        kept = select(JobRow.state, JobRow.user, func.count()).where(JobRow.deleted.is_(None))
        jobs = kept.group_by(JobRow.state, JobRow.user)
        ended = select(AttemptRow.outcome, func.count().label("number")).where(AttemptRow.ended.is_not(None))
        outcomes = {row.outcome: row.number for row in session.execute(ended.group_by(AttemptRow.outcome))}
        waiting: dict[str, float] = defaultdict(float)
        for job in session.scalars(select(JobRow).where(JobRow.ended.is_(None), JobRow.state == State.WAITING)):
            for resource, amount in requested(job).items():
                waiting[resource] += amount
        over = (JobRow.ended.is_not(None), JobRow.deleted.is_(None), JobRow.runs_closed.is_(False))
        open_runs = select(func.count()).select_from(JobRow).where(*over)
        return Totals(
            jobs={(state, user): count for state, user, count in session.execute(jobs)},
            attempts={outcome: outcomes.get(outcome, 0) for outcome in Outcome},
            waiting={"CPU": 0, "GPU": 0, **waiting},
            running=self._running(session),
            open_runs=session.scalar(open_runs) or 0,
        )

    def _running(self, session: Session) -> list[list[str]]:
        columns = (AttemptRow.job_id, AttemptRow.number, JobRow.user, AttemptRow.ray_job_id, AttemptRow.node)
        running = (AttemptRow.running, AttemptRow.ended.is_(None), AttemptRow.ray_job_id.is_not(None))
        query = select(*columns).join(JobRow, JobRow.id == AttemptRow.job_id).where(*running)
        return [["" if value is None else str(value) for value in row] for row in session.execute(query)]
