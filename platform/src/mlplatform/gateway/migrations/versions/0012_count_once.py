"""Ledger with one row per attempt; no counters of warm and cold starts."""

from importlib import import_module
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_USAGE = (
    sa.Column("job", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("job_id", sa.String, nullable=False),
    sa.Column("user", sa.String, nullable=False),
    sa.Column("person", sa.String),
    sa.Column("team", sa.String),
    sa.Column("gpus", sa.BigInteger, nullable=False),
    sa.Column("cpus", sa.BigInteger, nullable=False),
    sa.Column("began", sa.BigInteger, nullable=False),
    sa.Column("ended", sa.BigInteger),
    sa.Column("recorded", sa.BigInteger),
    sa.Column("outcome", sa.String),
    sa.Column("measured", sa.BigInteger, nullable=False),
    sa.Column("excess_gpu", sa.BigInteger, nullable=False),
    sa.Column("excess_cpu", sa.BigInteger, nullable=False),
    sa.Column("most_gpus", sa.BigInteger, nullable=False),
    sa.Column("most_cpus", sa.BigInteger, nullable=False),
    sa.Column("borrowed", sa.Boolean, nullable=False),
    sa.Column("borrowed_gpu", sa.BigInteger, nullable=False),
    sa.Column("borrowed_use", sa.Float, nullable=False),
    sa.Column("used_gpu_s", sa.Float),
)


_SUMS: dict[str, Any] = {"excess_gpu": 0, "excess_cpu": 0, "borrowed_gpu": 0, "borrowed_use": 0.0}


def upgrade() -> None:
    stored = op.get_bind().execute(sa.text("SELECT * FROM usage ORDER BY job, attempt, n")).mappings().all()
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for row in stored:
        first = rows.setdefault((row["job"], row["attempt"]), dict(row))
        first |= {name: row[name] for name in ("ended", "recorded", "outcome")}
    for table in ("start_logs", "starts", "usage"):
        op.drop_table(table)
    usage = op.create_table("usage", *_USAGE)
    op.create_index("ended_usage", "usage", ["ended"])
    if rows:
        op.bulk_insert(usage, [_merged(row) for row in rows.values()])


def downgrade() -> None:
    op.drop_table("usage")
    for name in ("0003_starts", "0007_usage"):
        import_module(f"mlplatform.gateway.migrations.versions.{name}").upgrade()


def _merged(row: dict[str, Any]) -> dict[str, Any]:
    """The first row of an attempt, with its end; what it held beyond its request is not kept."""
    borrowed, most = row.pop("kind") == "borrowed", {"most_gpus": row["gpus"], "most_cpus": row["cpus"]}
    del row["n"]
    return row | _SUMS | most | {"measured": row["ended"] or row["began"], "borrowed": borrowed}
