"""Classes and arrays of jobs, resumed jobs, attempts whose GPUs do nothing, and messages to people."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("job_class", sa.String, nullable=False, server_default="normal"))
    op.add_column("jobs", sa.Column("array_id", sa.String))
    op.add_column("jobs", sa.Column("at_most", sa.Integer))
    op.add_column("jobs", sa.Column("resumed", sa.DateTime(timezone=True)))
    op.add_column("attempts", sa.Column("idle_since", sa.DateTime(timezone=True)))
    op.add_column("attempts", sa.Column("leave_fails", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("teams", sa.Column("idle_s", sa.Integer, nullable=False, server_default="1800"))
    op.add_column("people", sa.Column("webhook", sa.String))
    op.create_table(
        "messages",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), primary_key=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("person", "job_id", "event", "state", "text")),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
    )
    op.create_index("jobs_of_arrays", "jobs", ["array_id"], postgresql_where=sa.text("array_id IS NOT NULL"))


def downgrade() -> None:
    op.drop_index("jobs_of_arrays", "jobs")
    op.drop_table("messages")
    op.drop_column("people", "webhook")
    op.drop_column("teams", "idle_s")
    for name in ("idle_since", "leave_fails"):
        op.drop_column("attempts", name)
    for name in ("job_class", "array_id", "at_most", "resumed"):
        op.drop_column("jobs", name)
