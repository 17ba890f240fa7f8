"""Record of the jobs' runs."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("own", sa.Boolean, nullable=False),
        sa.Column("reported", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(("job_id", "attempt"), ("attempts.job_id", "attempts.number"), ondelete="CASCADE"),
    )
    op.create_index("runs_of_jobs", "runs", ["job_id"])


def downgrade() -> None:
    op.drop_table("runs")
