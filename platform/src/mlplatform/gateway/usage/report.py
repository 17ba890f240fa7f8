"""Sums of the ledger: per person, team or job in a time window, and the totals for the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Float, Row, Select, and_, case, cast, func, literal_column, or_, select
from sqlalchemy.orm import Session

from mlplatform.gateway.database.engine import Store, transaction
from mlplatform.gateway.usage.ledger import LOST, PARTS, milliseconds
from mlplatform.gateway.usage.schema import UsageRow


class By(StrEnum):
    """Groups of a report."""

    PERSON = "person"
    TEAM = "team"
    JOB = "job"


@dataclass(frozen=True)
class Use:
    """Resources that a group held in a time window, in seconds times resources: granted ones, and measured ones beyond.

    What is measured counts in proportion for an attempt that the window contains in part.

    Attributes:
        person: account, or the user that the submission named; of a group of jobs by team, None.
        team: of a group by person, None; otherwise None without teams.
        job: submission id of the job; None in other groups. That of a deleted job may have been used again.
        sequence: sequence number of the job; None in other groups.
        jobs: number of jobs.
        running: number of attempts that have not ended.
        gpu_seconds: GPU-seconds.
        cpu_seconds: CPU-seconds.
        lost_gpu_seconds: part of `gpu_seconds` in attempts that the platform lost, for which nobody pays.
        lost_cpu_seconds: the same part of `cpu_seconds`.
        borrowed_gpu_seconds: part of `gpu_seconds` beyond the team's share.
        used_gpu_seconds: time for which GPUs were measured to compute, each counting in full; None if nothing measured
            them.
    """

    person: str | None
    team: str | None
    job: str | None
    sequence: int | None
    jobs: int
    running: int
    gpu_seconds: float
    cpu_seconds: float
    lost_gpu_seconds: float
    lost_cpu_seconds: float
    borrowed_gpu_seconds: float
    used_gpu_seconds: float | None = None


@dataclass(frozen=True)
class Total:
    """Everything that a person's jobs in a team have held, counted until the gateway recorded each end.

    It never decreases, as Prometheus requires of a counter: an end that is recorded late does not shorten it.

    Attributes:
        person: account, or the user that the submission named.
        team: empty without teams.
        gpu_seconds: GPU-seconds.
        cpu_seconds: CPU-seconds.
        lost_gpu_seconds: part of `gpu_seconds` in attempts that the platform lost.
        lost_cpu_seconds: the same part of `cpu_seconds`.
    """

    person: str
    team: str
    gpu_seconds: float
    cpu_seconds: float
    lost_gpu_seconds: float
    lost_cpu_seconds: float


_PERSON = func.coalesce(UsageRow.person, UsageRow.user)

_LOST = UsageRow.outcome == LOST


class UsageReader(Store):
    """Reader of the ledger; raises UnreachableError while the database is unavailable."""

    @transaction
    def read(
        self, session: Session, by: By, since: datetime, until: datetime, after: int = 0, limit: int | None = None
    ) -> list[Use]:
        """Return what was held in a window, one element per group, in the order of names or sequence numbers.

        Rows are clipped to the window; what is still held counts until its end.

        Args:
            by: groups.
            since: begin of the window.
            until: its end, not in the future.
            after: only jobs with a higher sequence number, to continue; without effect on other groups.
            limit: number of jobs at most; without effect on other groups.
        """
        if since >= until:
            return []
        query = _window(by, milliseconds(since), milliseconds(until))
        if by is By.JOB:
            query = query.where(UsageRow.job > after).limit(limit)
        return [_use(by, row) for row in session.execute(query)]

    @transaction
    def totals(self, session: Session, now: datetime) -> Sequence[Total]:
        """Return the totals per person and team at the present time, those of deleted jobs included."""
        end = func.coalesce(UsageRow.recorded, milliseconds(now))
        span = case((end > UsageRow.began, end - UsageRow.began), else_=0)
        team = func.coalesce(UsageRow.team, literal_column("''"))  # a parameter would be another expression each time
        held = UsageRow.gpus * span + UsageRow.excess_gpu, UsageRow.cpus * span + UsageRow.excess_cpu
        sums = [_sum(amount, which) for which in (None, _LOST) for amount in held]
        rows = session.execute(select(_PERSON, team, *sums).group_by(_PERSON, team).order_by(_PERSON, team))
        return [Total(person, named, *map(_seconds, amounts)) for person, named, *amounts in rows]


def _window(by: By, since: int, until: int) -> Select[Any]:
    """Return the query of the groups, with the columns that `_use` reads; times are in milliseconds."""
    group = {By.PERSON: _PERSON, By.TEAM: UsageRow.team, By.JOB: UsageRow.job}[by]
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
            func.max(_PERSON).label("person"),
            func.max(UsageRow.team).label("team"),
            func.max(UsageRow.job_id).label("job_id"),
            func.max(UsageRow.job).label("sequence"),
            func.count(UsageRow.job.distinct()).label("jobs"),
            _sum(1, UsageRow.ended.is_(None)).label("running"),
            _sum(gpus).label("gpu"),
            _sum(cpus).label("cpu"),
            _sum(gpus, _LOST).label("lost_gpu"),
            _sum(cpus, _LOST).label("lost_cpu"),
            _sum(UsageRow.borrowed_gpu * part).label("borrowed_gpu"),
            _sum(UsageRow.used_gpu_s * part).label("used_gpu"),
        )
        .where(UsageRow.began < until, or_(UsageRow.ended.is_(None), UsageRow.ended > since))
        .group_by(group)
        .order_by(group)
    )


def _sum(amount: Any, which: ColumnElement[bool] | None = None) -> ColumnElement[Any]:
    return func.sum(amount if which is None else case((which, amount), else_=0))


def _use(by: By, row: Row[Any]) -> Use:
    return Use(
        person=None if by is By.TEAM else row.person,
        team=None if by is By.PERSON else row.team,
        job=row.job_id if by is By.JOB else None,
        sequence=row.sequence if by is By.JOB else None,
        jobs=row.jobs,
        running=int(row.running),
        gpu_seconds=_seconds(row.gpu),
        cpu_seconds=_seconds(row.cpu),
        lost_gpu_seconds=_seconds(row.lost_gpu),
        lost_cpu_seconds=_seconds(row.lost_cpu),
        borrowed_gpu_seconds=_seconds(row.borrowed_gpu),
        used_gpu_seconds=None if row.used_gpu is None else round(float(row.used_gpu), 3),
    )


def _seconds(sum_of_parts: Any) -> float:
    """Return seconds for ten-thousandths times milliseconds; Postgres sums integers as a decimal number."""
    return float(sum_of_parts) / (PARTS * 1000)
