"""Jobs, their attempts, and the nodes that were seen."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), primary_key=True),
        sa.Column("id", sa.String, nullable=False, unique=True),
        sa.Column("user", sa.String, nullable=False),
        sa.Column("entrypoint", sa.String, nullable=False),
        sa.Column("runtime_env", sa.JSON, nullable=False),
        sa.Column("job_metadata", sa.JSON, nullable=False),
        sa.Column("entry", sa.JSON, nullable=False),
        sa.Column("workers", sa.JSON(none_as_null=True)),
        sa.Column("wait_for_capacity", sa.Boolean, nullable=False),
        sa.Column("max_losses", sa.Integer, nullable=False),
        sa.Column("max_failures", sa.Integer, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("message", sa.String, nullable=False),
        sa.Column("losses", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("stop_requested", sa.Boolean, nullable=False),
        sa.Column("created", _TIME, nullable=False),
        sa.Column("not_before", _TIME, nullable=False),
        sa.Column("ended", _TIME),
        sa.Column("exit_code", sa.Integer),
        sa.Column("error_type", sa.String),
        sa.Column("runs_closed", sa.Boolean, nullable=False),
    )
    op.create_index("open_jobs", "jobs", ["number"], postgresql_where=sa.text("ended IS NULL"))
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.String, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("ray_id", sa.String, nullable=False, unique=True),
        sa.Column("created", _TIME, nullable=False),
        sa.Column("accepted", sa.Boolean, nullable=False),
        sa.Column("running", sa.Boolean, nullable=False),
        sa.Column("ended", _TIME),
        sa.Column("outcome", sa.String),
        sa.Column("reason", sa.String),
        sa.Column("exit_code", sa.Integer),
        sa.Column("node_id", sa.String),
        sa.Column("node", sa.String),
        sa.Column("agent", sa.String),
        sa.Column("ray_job", sa.String, index=True),
        sa.Column("driver", sa.JSON(none_as_null=True)),
        sa.Column("in_ray", sa.Boolean, nullable=False),
        sa.Column("runs_closed", sa.Boolean, nullable=False),
    )
    op.create_table(
        "nodes",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("total", sa.JSON, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("seen", _TIME, nullable=False),
    )


def downgrade() -> None:
    for table in ("nodes", "attempts", "jobs"):
        op.drop_table(table)
