"""Budgets of GPU hours of teams and tokens."""

import sqlalchemy as sa
from alembic import op

revision = "r0004"
down_revision = "r0003"


def upgrade() -> None:
    op.add_column("teams", sa.Column("budget", sa.String(), nullable=False, server_default=""))
    op.add_column("teams", sa.Column("budget_warned", sa.DateTime(timezone=True)))
    for table in ("tokens", "login_codes"):
        op.add_column(table, sa.Column("gpu_hours", sa.Double()))
    for table in ("jobs", "usage"):
        op.add_column(table, sa.Column("token", sa.String()))
    op.create_index("ix_usage_token", "usage", ["token"])
