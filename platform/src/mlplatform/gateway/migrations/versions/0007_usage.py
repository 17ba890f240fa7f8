"""Ledger of reserved resources, with a row for each attempt that is still stored."""

import datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

_TIME = sa.DateTime(timezone=True)

_USAGE = (
    sa.Column("job", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("n", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("job_id", sa.String, nullable=False),
    sa.Column("user", sa.String, nullable=False),
    sa.Column("person", sa.String),
    sa.Column("team", sa.String),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("gpus", sa.BigInteger, nullable=False),
    sa.Column("cpus", sa.BigInteger, nullable=False),
    sa.Column("began", sa.BigInteger, nullable=False),
    sa.Column("ended", sa.BigInteger),
    sa.Column("recorded", sa.BigInteger),
    sa.Column("outcome", sa.String),
    sa.Column("used_gpu_s", sa.Float),
)

_JOBS = sa.table(
    "jobs",
    *(sa.column(name, sa.String) for name in ("id", "user", "person", "team")),
    *(sa.column(name, sa.JSON) for name in ("entrypoint_request", "workers")),
    sa.column("sequence", sa.BigInteger),
    sa.column("ended", _TIME),
)

_ATTEMPTS = sa.table(
    "attempts",
    *(sa.column(name, sa.String) for name in ("job_id", "outcome")),
    *(sa.column(name, _TIME) for name in ("created", "ended")),
    sa.column("number", sa.Integer),
)


def upgrade() -> None:
    usage = op.create_table("usage", *_USAGE)
    op.create_index("ended_usage", "usage", ["ended"])
    stored = sa.select(
        *(_JOBS.c.sequence, _JOBS.c.id, _JOBS.c.user, _JOBS.c.person, _JOBS.c.team),
        *(_JOBS.c.entrypoint_request, _JOBS.c.workers, _ATTEMPTS.c.number, _ATTEMPTS.c.created, _ATTEMPTS.c.outcome),
        sa.func.coalesce(_ATTEMPTS.c.ended, _JOBS.c.ended).label("ended"),
    ).join_from(_ATTEMPTS, _JOBS, _JOBS.c.id == _ATTEMPTS.c.job_id)
    rows = [
        {
            "job": row.sequence,
            "attempt": row.number,
            "n": 1,
            "job_id": row.id,
            "user": row.user,
            "person": row.person,
            "team": row.team,
            "kind": "share",
            "gpus": _parts(row.entrypoint_request, row.workers, "gpus", 0),
            "cpus": _parts(row.entrypoint_request, row.workers, "cpus", 1),
            "began": _milliseconds(row.created),
            # Versions before this one did not store when the process ended, only when they noticed it.
            "ended": _milliseconds(row.ended),
            "recorded": _milliseconds(row.ended),
            "outcome": row.outcome,
        }
        for row in op.get_bind().execute(stored)
    ]
    if rows:
        op.bulk_insert(usage, rows)


def downgrade() -> None:
    op.drop_table("usage")


def _parts(entry: dict[str, Any], workers: dict[str, Any] | None, resource: str, by_default: float) -> int:
    """Everything that the entry point and the workers request, in ten-thousandths."""
    group: dict[str, float] = workers or {}
    own: float = entry.get(f"entrypoint_num_{resource}") or 0
    return round((own + group.get("count", 0) * group.get(resource, by_default)) * 10_000)


def _milliseconds(moment: datetime.datetime | None) -> int | None:
    if moment is None:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)  # SQLite stores no zone
    return (moment - _EPOCH) // datetime.timedelta(milliseconds=1)
