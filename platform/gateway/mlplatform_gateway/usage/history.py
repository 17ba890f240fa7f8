"""Decayed use of persons and teams, which the ledger has and the order of the queue depends on."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from mlplatform.capacity.resources import rate
from mlplatform_gateway.audit.store import SHARED_TOKEN
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.queue.planner.queue import Usage
from mlplatform_gateway.usage.ledger import HALF_LIFE_SECONDS, LOST, PARTS, Decayed, milliseconds
from mlplatform_gateway.usage.schema import UsageRow

_HALF_LIVES = 10
"""Use of which less than a thousandth counts is left out."""

_COLUMNS = (
    *(UsageRow.person, UsageRow.team, UsageRow.gpus, UsageRow.cpus, UsageRow.began, UsageRow.ended),
    *(UsageRow.measured, UsageRow.excess_gpu, UsageRow.excess_cpu, UsageRow.borrowed, UsageRow.borrowed_use),
)
"""Loading whole objects of thousands of attempts takes several times as long."""


class UsageHistory(Store):
    """Reader of the decayed use; raises UnreachableError while the database is unavailable."""

    @transaction
    def read(self, session: Session, now: datetime) -> Usage:
        """Return what persons have used and teams have borrowed, decayed to the present time.

        Attempts that the platform lost do not count.
        """
        present = milliseconds(now)
        begin = present - int(_HALF_LIVES * HALF_LIFE_SECONDS * 1000)
        query = select(*_COLUMNS).where(
            or_(UsageRow.ended.is_(None), UsageRow.ended > begin),
            or_(UsageRow.outcome.is_(None), UsageRow.outcome != LOST),
        )
        persons: dict[str, float] = defaultdict(float)
        borrowed: dict[str, float] = defaultdict(float)
        for row in session.execute(query):
            end = row.ended or present
            granted = rate(row.gpus / PARTS, row.cpus / PARTS)
            # The measured excess counts as if it had been held all the time.
            excess = rate(row.excess_gpu / PARTS, row.excess_cpu / PARTS) / max(end - row.began, 1)
            used = Decayed(at=row.began / 1000).later(end / 1000, granted + excess)
            persons[row.person or SHARED_TOKEN] += used.later(present / 1000).value
            lent = Decayed(row.borrowed_use, row.measured / 1000)
            lent = lent.later(end / 1000, granted if row.borrowed else 0.0).later(present / 1000)
            if lent.value and row.team is not None:
                borrowed[row.team] += lent.value
        return Usage(dict(persons), dict(borrowed))

    @transaction
    def most_held(self, session: Session, job: int, attempt: int) -> tuple[float, float]:
        """Return the GPUs and CPUs that an attempt held when these were most, GPUs before CPUs."""
        row = session.get(UsageRow, (job, attempt))
        return (row.most_gpus / PARTS, row.most_cpus / PARTS) if row else (0.0, 0.0)
