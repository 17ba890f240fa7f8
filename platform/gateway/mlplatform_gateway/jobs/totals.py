"""Numbers of jobs and attempts for the metrics, counted in the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.states import Outcome, State
from mlplatform_gateway.jobs.submission import requested

RUNNING = ("job_id", "attempt", "user", "ray_job_id", "node")
"""Labels of a running attempt. By Ray's id of the driver, Ray labels its own metrics; the node is the driver's."""


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


class TotalsReader(Store):
    """Reader of the numbers."""

    @transaction
    def read(self, session: Session) -> Totals:
        """Return the numbers as they are now; raises UnreachableError while the database is unavailable."""
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
