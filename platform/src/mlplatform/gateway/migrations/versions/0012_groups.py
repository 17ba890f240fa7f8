"""Groups of jobs in place of arrays."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.drop_index("jobs_of_arrays", "jobs")
    op.alter_column("jobs", "array_id", new_column_name="group_name")


def downgrade() -> None:
    op.alter_column("jobs", "group_name", new_column_name="array_id")
    op.create_index("jobs_of_arrays", "jobs", ["array_id"], postgresql_where=sa.text("array_id IS NOT NULL"))
