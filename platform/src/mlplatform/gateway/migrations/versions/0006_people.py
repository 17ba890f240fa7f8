"""People, teams, tokens and log-in codes, and the person and the team of a job."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "people",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("administrator", sa.Boolean, nullable=False),
        sa.Column("created", _TIME, nullable=False),
    )
    op.create_table(
        "teams",
        sa.Column("name", sa.String, primary_key=True),
        *(sa.Column(name, sa.Double, nullable=False) for name in ("share_gpus", "share_cpus", "weight")),
        sa.Column("caps", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("default_limit_s", sa.Integer, nullable=False),
        sa.Column("created", _TIME, nullable=False),
    )
    op.create_table(
        "members",
        sa.Column("team", sa.String, primary_key=True),
        sa.Column("person", sa.String, primary_key=True, index=True),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("joined", _TIME, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("digest", sa.String, nullable=False, unique=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("owner", sa.String, nullable=False, index=True),
        *(sa.Column(name, _TIME, nullable=False) for name in ("created", "expires")),
        *(sa.Column(name, _TIME) for name in ("revoked", "used")),
    )
    op.create_table(
        "login_codes",
        sa.Column("digest", sa.String, primary_key=True),
        sa.Column("person", sa.String, nullable=False),
        sa.Column("expires", _TIME, nullable=False),
    )
    for name in ("person", "team"):
        op.add_column("jobs", sa.Column(name, sa.String))


def downgrade() -> None:
    for name in ("team", "person"):
        op.drop_column("jobs", name)
    # Sessions that people have opened would otherwise remain without their tokens.
    op.execute("DELETE FROM sessions WHERE token_digest IN (SELECT digest FROM tokens)")
    for table in ("login_codes", "tokens", "members", "teams", "people"):
        op.drop_table(table)
