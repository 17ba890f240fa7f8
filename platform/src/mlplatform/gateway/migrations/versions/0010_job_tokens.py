"""Tokens of attempts."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("tokens", sa.Column("job_id", sa.String))
    op.add_column("tokens", sa.Column("attempt", sa.Integer))


def downgrade() -> None:
    for name in ("job_id", "attempt"):
        op.drop_column("tokens", name)
