"""Tokens of attempts, and the view by which MLflow checks tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_VIEW = """
CREATE VIEW valid_tokens AS
SELECT tokens.id, tokens.digest, tokens.kind, tokens.owner FROM tokens
JOIN people ON people.name = tokens.owner AND people.created <= tokens.created
LEFT JOIN attempts ON attempts.job_id = tokens.job_id AND attempts.number = tokens.attempt
WHERE tokens.revoked IS NULL AND tokens.expires > now()
AND (tokens.kind = 'person' OR (tokens.kind = 'job' AND attempts.number IS NOT NULL AND attempts.ended IS NULL))
"""

# The roles are created before the gateway starts; a database of a test may lack them.
_GRANT = """
DO $$ BEGIN
IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'mlflow') THEN GRANT SELECT ON valid_tokens TO mlflow; END IF;
END $$
"""


def upgrade() -> None:
    op.add_column("tokens", sa.Column("job_id", sa.String))
    op.add_column("tokens", sa.Column("attempt", sa.Integer))
    if op.get_bind().dialect.name == "postgresql":
        op.execute(_VIEW)
        op.execute(_GRANT)


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP VIEW valid_tokens")
    for name in ("job_id", "attempt"):
        op.drop_column("tokens", name)
