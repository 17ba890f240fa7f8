"""Jobs for people who look at the platform: those that run, those that wait, and those that ended last."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload

from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import State

SHOWN = 50
"""Jobs that are shown per list; a person does not read more."""

ENDED_SHOWN = 20


@dataclass(frozen=True)
class ShownJobs:
    """Lists of jobs, each cut to what is shown.

    Attributes:
        running: in the order of arrival; jobs that Ray starts at this moment included.
        waiting: those that were named to the reader, then others, each in the order of arrival.
        ended: the latest first.
        counts: number of all open jobs by state.
    """

    running: Sequence[JobRow]
    waiting: Sequence[JobRow]
    ended: Sequence[JobRow]
    counts: dict[str, int]


class JobOverview(Store):
    """Reader of the lists, from the gateway's database."""

    @transaction
    def read(self, session: Session, first: Collection[str] = ()) -> ShownJobs:
        """Return the lists as they are now; raises UnreachableError while the database is unavailable.

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
        waiting = [*named, *session.scalars(others).unique()]
        kept = jobs.where(JobRow.ended.is_not(None), JobRow.deleted.is_(None))
        latest = kept.order_by(JobRow.ended.desc()).limit(ENDED_SHOWN)
        ended = session.scalars(latest).unique().all()
        states = select(JobRow.state, func.count().label("number")).where(JobRow.ended.is_(None)).group_by(JobRow.state)
        return ShownJobs(running, waiting, ended, {row.state: row.number for row in session.execute(states)})
