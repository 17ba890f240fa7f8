"""Sums of the ledger: per person, team or job in a time window, and the totals for the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Float,
    Label,
    Numeric,
    Row,
    Select,
    and_,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.orm import Session

from mlplatform.api.usage import By
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.usage.ledger import LOST, PARTS, milliseconds
from mlplatform_gateway.usage.schema import UsageRow

_PERSON = func.coalesce(UsageRow.person, UsageRow.user)
_LOST = UsageRow.outcome == LOST

_GROUPS: Mapping[By, tuple[Label[Any], ...]] = {
    By.PERSON: (_PERSON.label("person"),),
    By.TEAM: (UsageRow.team.label("team"),),
    By.JOB: (
        # The id of a deleted job may have been used again; the sequence number never is.
        UsageRow.job.label("sequence"),
        func.max(UsageRow.job_id).label("job"),
        func.max(_PERSON).label("person"),
        func.max(UsageRow.team).label("team"),
    ),
}
"""Columns that name a group; the rows are grouped and ordered by the first."""


class UsageReader(Store):
    """Reader of the ledger; raises UnreachableError while the database is unavailable."""

    @transaction
    def read(
        self, session: Session, by: By, since: datetime, until: datetime, after: int = 0, limit: int | None = None
    ) -> Sequence[Row[Any]]:
        """Return what was held in a window, one row per group, in the order of names or sequence numbers.

        Rows of the ledger are clipped to the window; what is still held counts until its end. What is measured counts
        in proportion for an attempt that the window contains in part.

        Args:
            until: end of the window, not in the future.
            after: only jobs with a higher sequence number, to continue; without effect on other groups.
            limit: number of jobs at most; without effect on other groups.

        Returns:
            Rows with the fields of `api.usage.Use`, of which those that name groups of other kinds are missing.
        """
        if since >= until:
            return []
        query = _window(by, milliseconds(since), milliseconds(until))
        if by is By.JOB:
            query = query.where(UsageRow.job > after).limit(limit)
        return session.execute(query).all()

    @transaction
    def totals(self, session: Session, now: datetime) -> Sequence[Row[Any]]:
        """Return everything that each person's jobs in a team have held, those of deleted jobs included.

        It is counted until the gateway recorded each end, and so never decreases, as Prometheus requires of a counter:
        an end that is recorded late does not shorten it.

        Returns:
            Rows with `person`, `team` (empty without teams), `gpu_seconds`, `cpu_seconds`, `lost_gpu_seconds` and
            `lost_cpu_seconds`.
        """
        end = func.coalesce(UsageRow.recorded, milliseconds(now))
        span = case((end > UsageRow.began, end - UsageRow.began), else_=0)
        team = func.coalesce(UsageRow.team, literal_column("''"))  # a parameter would be another expression each time
        gpus, cpus = UsageRow.gpus * span + UsageRow.excess_gpu, UsageRow.cpus * span + UsageRow.excess_cpu
        names = (_PERSON.label("person"), team.label("team"))
        query = select(*names, *_seconds(gpus, cpus)).group_by(_PERSON, team).order_by(_PERSON, team)
        return session.execute(query).all()


def paid_gpu_hours(row: Row[Any]) -> float:
    """Return the GPU hours of a group of a report; nobody pays for those that the platform lost."""
    return float(row.gpu_seconds - row.lost_gpu_seconds) / 3600


def gpu_hours_of(session: Session, token: str, until: datetime) -> float:
    """Return the GPU hours of the jobs that a token, by its id, has submitted, until the present time."""
    query = _window(By.PERSON, 0, milliseconds(until)).where(UsageRow.token == token)
    return sum(map(paid_gpu_hours, session.execute(query)))


def _window(by: By, since: int, until: int) -> Select[Any]:
    """Return the query of the groups; times are in milliseconds."""
    names = _GROUPS[by]
    end = case((and_(UsageRow.ended.is_not(None), UsageRow.ended < until), UsageRow.ended), else_=until)
    begin = case((UsageRow.began > since, UsageRow.began), else_=since)
    last = func.coalesce(UsageRow.ended, UsageRow.measured)
    until_last = case((last < until, last), else_=until)
    # A floating-point number: a product of the integers would exceed 64 bits.
    part = case((until_last > begin, cast(until_last - begin, Float) / (last - UsageRow.began)), else_=0.0)
    gpus = UsageRow.gpus * (end - begin) + UsageRow.excess_gpu * part
    cpus = UsageRow.cpus * (end - begin) + UsageRow.excess_cpu * part
    return (
        select(
            *names,
            func.count(UsageRow.job.distinct()).label("jobs"),
            func.sum(case((UsageRow.ended.is_(None), 1), else_=0)).label("running"),
            *_seconds(gpus, cpus),
            _sum(UsageRow.borrowed_gpu * part).label("borrowed_gpu_seconds"),
            # To milliseconds, which a sum of floating-point numbers is not; Postgres rounds decimal numbers only.
            cast(func.round(cast(func.sum(UsageRow.used_gpu_s * part), Numeric), 3), Float).label("used_gpu_seconds"),
        )
        .where(UsageRow.began < until, or_(UsageRow.ended.is_(None), UsageRow.ended > since))
        .group_by(names[0].element)
        .order_by(names[0].element)
    )


def _seconds(gpus: ColumnElement[Any], cpus: ColumnElement[Any]) -> list[ColumnElement[Any]]:
    """Return the sums of amounts, and of those that the platform lost."""
    amounts = {"gpu_seconds": gpus, "cpu_seconds": cpus}
    lost = {f"lost_{name}": case((_LOST, amount), else_=0) for name, amount in amounts.items()}
    return [_sum(amount).label(name) for name, amount in (amounts | lost).items()]


def _sum(parts: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a sum in seconds, of ten-thousandths times milliseconds; Postgres sums integers as a decimal number."""
    return cast(func.sum(parts), Float) / (PARTS * 1000)
