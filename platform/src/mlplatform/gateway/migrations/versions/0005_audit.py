"""Audit log, whose rows cannot be changed, and the time at which a job was deleted."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_TIME = sa.DateTime(timezone=True)

_TRIGGERS = {
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
    op.create_table(
        "audit",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), primary_key=True),
        sa.Column("time", _TIME, nullable=False),
        *(sa.Column(name, sa.String, nullable=False) for name in ("principal", "kind", "address", "verb", "object")),
        *(sa.Column(name, sa.String) for name in ("before", "after")),
    )
    for statement in _TRIGGERS[op.get_bind().dialect.name]:
        op.execute(statement)
    op.add_column("jobs", sa.Column("deleted", _TIME))


def downgrade() -> None:
    op.execute("DELETE FROM jobs WHERE deleted IS NOT NULL")
    op.drop_column("jobs", "deleted")
    op.drop_table("audit")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_append_only()")
