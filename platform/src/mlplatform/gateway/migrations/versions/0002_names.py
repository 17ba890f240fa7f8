"""Rename columns: one pair of words for restarts, and names that tell Ray's ids from the platform's."""

from alembic import op

revision = "0002"
down_revision = "0001"

_RENAMED = {
    "jobs": {
        "number": "sequence",
        "entry": "entrypoint_request",
        "max_losses": "max_restarts_on_loss",
        "max_failures": "max_restarts_on_failure",
    },
    "attempts": {"ray_id": "ray_submission_id", "ray_job": "ray_job_id"},
}


def upgrade() -> None:
    op.drop_index("ix_attempts_ray_job", "attempts")
    for table, columns in _RENAMED.items():
        for old, new in columns.items():
            op.alter_column(table, old, new_column_name=new)
    op.create_index("ix_attempts_ray_job_id", "attempts", ["ray_job_id"])


def downgrade() -> None:
    op.drop_index("ix_attempts_ray_job_id", "attempts")
    for table, columns in _RENAMED.items():
        for old, new in columns.items():
            op.alter_column(table, new, new_column_name=old)
    op.create_index("ix_attempts_ray_job", "attempts", ["ray_job"])
