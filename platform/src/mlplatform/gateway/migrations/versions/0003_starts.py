"""Warm and cold starts of the processes of each attempt, and the positions in the nodes' logs of starts."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "starts",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("role", sa.String, primary_key=True),
        sa.Column("reason", sa.String, primary_key=True),
        sa.Column("count", sa.Integer, nullable=False),
        sa.ForeignKeyConstraint(("job_id", "attempt"), ("attempts.job_id", "attempts.number"), ondelete="CASCADE"),
    )
    op.create_table(
        "start_logs",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), primary_key=True),
        sa.Column("node", sa.String, nullable=False),
        sa.Column("file", sa.String, nullable=False),
        sa.Column("bytes_read", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("node", "file", name="one_row_per_start_log"),
    )


def downgrade() -> None:
    op.drop_table("start_logs")
    op.drop_table("starts")
