"""All tables of version 0.4, the first whose database later versions upgrade."""

import sqlalchemy as sa
from alembic import op

# With a letter: versions before 0.4 called theirs 0001 to 0011, so that their databases would seem to be known.
revision = "r0001"
down_revision = None

_TIME = sa.DateTime(timezone=True)
_JSON = sa.JSON(none_as_null=True)
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer, "sqlite")

_STATEMENTS = {
    "postgresql": (
        "CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the table audit is append-only'; END $$",
        "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only()",
    ),
    "sqlite": (
        "CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit "
        "BEGIN SELECT RAISE(ABORT, 'the table audit is append-only'); END",
        "CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit "
        "BEGIN SELECT RAISE(ABORT, 'the table audit is append-only'); END",
        # INSERT OR REPLACE fires no trigger for the row that it deletes.
        "CREATE TRIGGER audit_no_replace BEFORE INSERT ON audit "
        "WHEN EXISTS (SELECT 1 FROM audit WHERE sequence = NEW.sequence) "
        "BEGIN SELECT RAISE(ABORT, 'the table audit is append-only'); END",
    ),
}


def upgrade() -> None:
    _jobs()
    _attempts()
    _people()
    _records()
    for statement in _STATEMENTS[op.get_bind().dialect.name]:
        op.execute(statement)


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("sequence", _SEQUENCE, sa.Identity(), nullable=False),
        sa.Column("id", sa.String, nullable=False),
        sa.Column("user", sa.String, nullable=False),
        sa.Column("person", sa.String),
        sa.Column("team", sa.String),
        sa.Column("entrypoint", sa.String, nullable=False),
        sa.Column("runtime_env", _JSON, nullable=False),
        sa.Column("job_metadata", _JSON, nullable=False),
        sa.Column("entrypoint_request", _JSON, nullable=False),
        sa.Column("workers", _JSON),
        sa.Column("wait_for_capacity", sa.Boolean, nullable=False),
        sa.Column("max_restarts_on_loss", sa.Integer, nullable=False),
        sa.Column("max_restarts_on_failure", sa.Integer, nullable=False),
        sa.Column("limit_s", sa.Double),
        sa.Column("job_class", sa.String, nullable=False),
        sa.Column("group_name", sa.String),
        sa.Column("at_most", sa.Integer),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("message", sa.String, nullable=False),
        sa.Column("losses", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("stop_requested", sa.Boolean, nullable=False),
        sa.Column("preemptions", sa.Integer, nullable=False),
        sa.Column("claim", _JSON),
        sa.Column("created", _TIME, nullable=False),
        sa.Column("resumed", _TIME),
        sa.Column("not_before", _TIME, nullable=False),
        sa.Column("ended", _TIME),
        sa.Column("deleted", _TIME),
        sa.Column("exit_code", sa.Integer),
        sa.Column("error_type", sa.String),
        sa.Column("runs_closed", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("sequence"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("open_jobs", "jobs", ["sequence"], postgresql_where=sa.text("ended IS NULL"))
    op.create_table(
        "messages",
        sa.Column("sequence", _SEQUENCE, sa.Identity(), nullable=False),
        sa.Column("person", sa.String, nullable=False),
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("event", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("text", sa.String, nullable=False),
        sa.Column("created", _TIME, nullable=False),
        sa.Column("due", _TIME, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("sequence"),
    )


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("ray_submission_id", sa.String, nullable=False),
        sa.Column("created", _TIME, nullable=False),
        sa.Column("accepted", sa.Boolean, nullable=False),
        sa.Column("running", sa.Boolean, nullable=False),
        sa.Column("ended", _TIME),
        sa.Column("outcome", sa.String),
        sa.Column("reason", sa.String),
        sa.Column("grace_s", sa.Double),
        sa.Column("leave_by", _TIME),
        sa.Column("idle_since", _TIME),
        sa.Column("leave_why", sa.String),
        sa.Column("leave_fails", sa.Boolean, nullable=False),
        sa.Column("claimant", sa.String),
        sa.Column("exit_code", sa.Integer),
        sa.Column("node_id", sa.String),
        sa.Column("node", sa.String),
        sa.Column("agent", sa.String),
        sa.Column("ray_job_id", sa.String),
        sa.Column("driver", _JSON),
        sa.Column("in_ray", sa.Boolean, nullable=False),
        sa.Column("runs_closed", sa.Boolean, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "number"),
        sa.UniqueConstraint("ray_submission_id"),
    )
    op.create_index("ix_attempts_ray_job_id", "attempts", ["ray_job_id"])
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("own", sa.Boolean, nullable=False),
        sa.Column("reported", _TIME, nullable=False),
        sa.ForeignKeyConstraint(["job_id", "attempt"], ["attempts.job_id", "attempts.number"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_index("runs_of_jobs", "runs", ["job_id"])


def _people() -> None:
    op.create_table(
        "people",
        sa.Column("name", sa.String, nullable=False),
        sa.Column("administrator", sa.Boolean, nullable=False),
        sa.Column("webhook", sa.String),
        sa.Column("revocations", sa.Integer, nullable=False),
        sa.Column("mlflow_revocations", sa.Integer),
        sa.Column("created", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "teams",
        sa.Column("name", sa.String, nullable=False),
        sa.Column("share_gpus", sa.Double, nullable=False),
        sa.Column("share_cpus", sa.Double, nullable=False),
        sa.Column("weight", sa.Double, nullable=False),
        sa.Column("caps", _JSON, nullable=False),
        sa.Column("default_limit_s", sa.Integer, nullable=False),
        sa.Column("idle_s", sa.Integer, nullable=False),
        sa.Column("created", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "members",
        sa.Column("team", sa.String, nullable=False),
        sa.Column("person", sa.String, nullable=False),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("joined", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("team", "person"),
    )
    op.create_index("ix_members_person", "members", ["person"])
    op.create_table(
        "tokens",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("created", _TIME, nullable=False),
        sa.Column("expires", _TIME, nullable=False),
        sa.Column("revoked", _TIME),
        sa.Column("job_id", sa.String),
        sa.Column("attempt", sa.Integer),
        sa.Column("used", _TIME),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_index("ix_tokens_owner", "tokens", ["owner"])
    op.create_table(
        "login_codes",
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("person", sa.String, nullable=False),
        sa.Column("expires", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "sessions",
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("token_digest", sa.String, nullable=False),
        sa.Column("expires", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "secrets",
        sa.Column("person", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("value", sa.String, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("changed", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("person", "name"),
    )


def _records() -> None:
    op.create_table(
        "model_digests",
        sa.Column("source", sa.String, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("files", _JSON, nullable=False),
        sa.Column("recorded", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("source", "created"),
    )
    op.create_table(
        "audit",
        sa.Column("sequence", _SEQUENCE, sa.Identity(), nullable=False),
        sa.Column("time", _TIME, nullable=False),
        sa.Column("principal", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("address", sa.String, nullable=False),
        sa.Column("verb", sa.String, nullable=False),
        sa.Column("object", sa.String, nullable=False),
        sa.Column("before", sa.String),
        sa.Column("after", sa.String),
        sa.PrimaryKeyConstraint("sequence"),
    )
    op.create_table(
        "usage",
        sa.Column("job", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("user", sa.String, nullable=False),
        sa.Column("person", sa.String),
        sa.Column("team", sa.String),
        sa.Column("gpus", sa.BigInteger, nullable=False),
        sa.Column("cpus", sa.BigInteger, nullable=False),
        sa.Column("began", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger),
        sa.Column("recorded", sa.BigInteger),
        sa.Column("outcome", sa.String),
        sa.Column("measured", sa.BigInteger, nullable=False),
        sa.Column("excess_gpu", sa.BigInteger, nullable=False),
        sa.Column("excess_cpu", sa.BigInteger, nullable=False),
        sa.Column("most_gpus", sa.BigInteger, nullable=False),
        sa.Column("most_cpus", sa.BigInteger, nullable=False),
        sa.Column("borrowed", sa.Boolean, nullable=False),
        sa.Column("borrowed_gpu", sa.BigInteger, nullable=False),
        sa.Column("borrowed_use", sa.Float, nullable=False),
        sa.Column("used_gpu_s", sa.Float),
        sa.PrimaryKeyConstraint("job", "attempt"),
    )
    op.create_index("ended_usage", "usage", ["ended"])
