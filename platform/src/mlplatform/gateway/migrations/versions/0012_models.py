"""Digests of registered models, and what changes people's passwords at MLflow."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "model_digests",
        sa.Column("source", sa.String, primary_key=True),
        sa.Column("created", sa.BigInteger, primary_key=True),
        sa.Column("files", sa.JSON, nullable=False),
        sa.Column("recorded", sa.DateTime(timezone=True), nullable=False),
    )
    op.add_column("people", sa.Column("revocations", sa.Integer, nullable=False, server_default="0"))
    op.add_column("people", sa.Column("mlflow_revocations", sa.Integer))


def downgrade() -> None:
    op.drop_column("people", "mlflow_revocations")
    op.drop_column("people", "revocations")
    op.drop_table("model_digests")
