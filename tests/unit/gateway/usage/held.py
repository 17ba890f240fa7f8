"""The ledger as it is stored, and a clock for it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from mlplatform.gateway.database.engine import transaction
from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.usage import ledger
from mlplatform.gateway.usage.schema import UsageRow

BEGIN = datetime(2026, 11, 2, 8, tzinfo=UTC)


@dataclass
class Clock:
    """The time that `jobs.store.now` returns; it moves when it is set."""

    time: datetime = BEGIN

    def __call__(self) -> datetime:
        return self.time

    def forward(self, seconds: float) -> datetime:
        self.time += timedelta(seconds=seconds)
        return self.time


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def rows(store: JobStore) -> list[UsageRow]:
    with Session(store.engine) as session:
        found = session.scalars(select(UsageRow).order_by(UsageRow.job, UsageRow.attempt, UsageRow.n)).all()
        session.expunge_all()
    return list(found)


class Terms:
    """Decisions that change the terms of an attempt, each a transaction."""

    def __init__(self, store: JobStore) -> None:
        self.engine = store.engine

    @transaction
    def change(
        self,
        session: Session,
        job: int,
        attempt: int,
        when: datetime,
        kind: ledger.Kind | None = None,
        amounts: dict[str, float] | None = None,
    ) -> bool:
        return ledger.change(session, job, attempt, when, kind, amounts)
