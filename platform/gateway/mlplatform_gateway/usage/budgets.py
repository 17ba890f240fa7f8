"""Budgets of teams: GPU hours of the present day, week or month, compared with the ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from mlplatform.api.people import Role
from mlplatform.api.usage import By
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.notify.store import Event, MessageRow
from mlplatform_gateway.people.schema import MemberRow, TeamRow
from mlplatform_gateway.people.store import DEFAULT_TEAM
from mlplatform_gateway.usage.report import UsageReader, paid_gpu_hours

STALE = timedelta(seconds=60)
"""Age at which the sums are read again: eight GPUs use a seventh of an hour meanwhile."""

LOW = 0.8
"""Part of a budget from which on its team is warned."""


@dataclass(frozen=True)
class Budget:
    """A team's budget, and the GPU hours that it has used in the present period, which ends at `until`."""

    team: str
    gpu_hours: int
    period: str
    used: float
    until: datetime

    @property
    def part(self) -> float:
        """Part that is used; from 1 on, the team's jobs run on idle resources only."""
        return self.used / self.gpu_hours if self.gpu_hours else 1.0

    def __str__(self) -> str:
        """Return a sentence for people."""
        used = f"Team {self.team} has used {self.used:.1f} of its {self.gpu_hours} GPU hours of this {self.period}"
        end = f", so its jobs run on idle resources only until {self.until:%Y-%m-%d %H:%M} UTC"
        return f"{used}{end if self.part >= 1 else ''}."


class Budgets(Store):
    """Budgets of teams; every method raises UnreachableError while the database is unavailable."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._usage = UsageReader(engine)
        self._sums: dict[str, tuple[datetime, datetime, dict[str, float]]] = {}
        """By kind of period: its begin, the time of the sums, and the GPU hours of each team."""

    async def read(self, teams: Iterable[TeamRow], at: datetime, warn: bool = False) -> dict[str, Budget]:
        """Return the budgets of teams by name at the present time, `STALE` at most, and store messages that are due."""
        found: dict[str, Budget] = {}
        for team in teams:
            if not team.budget:
                continue
            gpu_hours, _, period = team.budget.partition("/")
            begin, until = period_of(period, at)
            used = (await self._used(period, begin, at)).get(team.name, 0.0)
            found[team.name] = budget = Budget(team.name, int(gpu_hours), period, used, until)
            if warn and budget.part >= LOW and team.budget_warned != until:
                await self._warn(budget, at)
        return found

    async def _used(self, period: str, begin: datetime, at: datetime) -> dict[str, float]:
        known = self._sums.get(period)
        if known is None or known[0] != begin or not timedelta() <= at - known[1] < STALE:
            used: dict[str, float] = defaultdict(float)
            for row in await self._usage.read(By.TEAM, begin, at):
                used[row.team or DEFAULT_TEAM] += paid_gpu_hours(row)
            known = self._sums[period] = begin, at, used
        return known[2]

    @transaction
    def _warn(self, session: Session, budget: Budget, at: datetime) -> None:
        """Store a message to the leads of a team and the owners of its open jobs, unless somebody else has."""
        team = session.get(TeamRow, budget.team, with_for_update=True)
        if team is None or team.budget_warned == budget.until:
            return
        team.budget_warned = budget.until
        leads = select(MemberRow.person).where(MemberRow.team == budget.team, MemberRow.role == Role.LEAD)
        jobs = JobRow.team == budget.team, JobRow.ended.is_(None), JobRow.person.is_not(None)
        for person in session.scalars(leads.union(select(JobRow.person).where(*jobs))).all():
            about = {"person": person, "job_id": "", "event": Event.BUDGET, "state": ""}
            session.add(MessageRow(**about, text=str(budget), created=at, due=at))


def period_of(period: str, at: datetime) -> tuple[datetime, datetime]:
    """Return the begin and the end of the day, ISO week or calendar month of a time, in UTC."""
    day = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    begin = day - timedelta(days={"day": 0, "week": day.weekday(), "month": day.day - 1}[period])
    if period == "month":
        return begin, (begin + timedelta(days=31)).replace(day=1)
    return begin, begin + timedelta(days=1 if period == "day" else 7)
