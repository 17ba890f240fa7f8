"""Teams whose jobs allow no shells."""

import sqlalchemy as sa
from alembic import op

revision = "r0002"
down_revision = "r0001"


def upgrade() -> None:
    op.add_column("teams", sa.Column("shells", sa.Boolean(), nullable=False, server_default=sa.true()))
