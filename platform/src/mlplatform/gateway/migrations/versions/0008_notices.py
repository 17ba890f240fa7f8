"""Notices that ask attempts to leave, claims of waiting jobs on what they leave, and time limits of jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("preemptions", sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("claim", sa.JSON))
    op.add_column("jobs", sa.Column("limit_s", sa.Double))
    op.add_column("attempts", sa.Column("grace_s", sa.Double))
    op.add_column("attempts", sa.Column("leave_by", sa.DateTime(timezone=True)))
    op.add_column("attempts", sa.Column("leave_why", sa.String))
    op.add_column("attempts", sa.Column("claimant", sa.String))


def downgrade() -> None:
    for name in ("grace_s", "leave_by", "leave_why", "claimant"):
        op.drop_column("attempts", name)
    for name in ("preemptions", "claim", "limit_s"):
        op.drop_column("jobs", name)
