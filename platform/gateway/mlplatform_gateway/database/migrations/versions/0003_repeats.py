"""Jobs after others, schedules, and jobs that repeat one."""

import sqlalchemy as sa
from alembic import op

revision = "r0003"
down_revision = "r0002"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("after", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("jobs", sa.Column("schedule", sa.String(), nullable=True))
    op.add_column("jobs", sa.Column("timezone", sa.String(), nullable=True))
    op.add_column("jobs", sa.Column("due", sa.DateTime(timezone=True), nullable=True))
    op.add_column("jobs", sa.Column("origin", sa.String(), nullable=True))
    op.create_index("times_of_schedules", "jobs", ["origin", "due"], unique=True)
