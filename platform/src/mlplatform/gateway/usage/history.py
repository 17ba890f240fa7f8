"""Decayed use of persons and teams, which the ledger has and the order of the queue depends on."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from sqlalchemy import Engine, or_, select
from sqlalchemy.orm import Session

from mlplatform.gateway.database.engine import transaction
from mlplatform.gateway.usage.ledger import LOST, PARTS, Kind, milliseconds
from mlplatform.gateway.usage.schema import UsageRow
from mlplatform.scheduling.decay import HALF_LIFE_SECONDS, Decayed, rate
from mlplatform.scheduling.queue import Usage

_HALF_LIVES = 10
"""Use of which less than a thousandth counts is left out."""


class UsageHistory:
    """Reader of the decayed use; raises UnreachableError while the database is unavailable.

    Args:
        engine: the gateway's database.
        nobody: name under which the jobs without an owner are counted.
    """

    def __init__(self, engine: Engine, nobody: str) -> None:
        self.engine = engine
        self._nobody = nobody

    @transaction
    def read(self, session: Session, now: datetime) -> Usage:
        """Return what persons have used and teams have borrowed, decayed to the present time.

        Attempts that the platform lost do not count.
        """
        end = milliseconds(now)
        begin = end - int(_HALF_LIVES * HALF_LIFE_SECONDS * 1000)
        row = UsageRow
        columns = row.person, row.team, row.kind, row.gpus, row.cpus, row.began, row.ended
        query = select(*columns).where(
            or_(row.ended.is_(None), row.ended > begin), or_(row.outcome.is_(None), row.outcome != LOST)
        )
        persons: dict[str, float] = defaultdict(float)
        borrowed: dict[str, float] = defaultdict(float)
        for person, team, kind, gpus, cpus, began, ended in session.execute(query):
            held = rate(gpus / PARTS, cpus / PARTS)
            used = Decayed(at=began / 1000).later((ended or end) / 1000, held).later(end / 1000).value
            persons[person or self._nobody] += used
            if kind == Kind.BORROWED and team is not None:
                borrowed[team] += used
        return Usage(dict(persons), dict(borrowed))

    @transaction
    def most_held(self, session: Session, job: int, attempt: int) -> tuple[float, float]:
        """Return the GPUs and CPUs that an attempt was charged for when these were most, GPUs before CPUs."""
        rows = select(UsageRow.gpus, UsageRow.cpus).where(UsageRow.job == job, UsageRow.attempt == attempt)
        gpus, cpus = max(map(tuple, session.execute(rows)), default=(0, 0))
        return gpus / PARTS, cpus / PARTS
