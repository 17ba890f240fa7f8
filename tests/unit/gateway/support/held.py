"""The ledger as it is stored, and a clock for it."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session
from stored import do

from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.usage.ledger import Sample, Samples
from mlplatform_gateway.usage.schema import UsageRow

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
        found = session.scalars(select(UsageRow).order_by(UsageRow.job, UsageRow.attempt)).all()
        session.expunge_all()
    return list(found)


def measure(store: JobStore, job: int, when: datetime, attempt: int = 1, **sample: Any) -> None:
    """Add a measurement of an attempt."""
    do(Samples(store.engine).add(when, {(job, attempt): Sample(**sample)}))
