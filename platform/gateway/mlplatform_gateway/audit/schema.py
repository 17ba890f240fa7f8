"""Table of the audit log, with triggers that refuse every change of a row."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import DDL, BigInteger, Identity, Integer, event
from sqlalchemy.orm import Mapped, mapped_column

from mlplatform_gateway.database.engine import Base


class AuditRow(Base):
    """An action that somebody has taken, or a log-in that failed."""

    __tablename__ = "audit"

    sequence: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True)
    time: Mapped[datetime]
    principal: Mapped[str]
    """Owner of the credential."""

    kind: Mapped[str]
    """Credential that was used: `token`, `session`, `job <id>` for an attempt; `mlflow` for an account there,
    `internal` for the platform itself."""

    address: Mapped[str]
    """Address of the client's end of the connection."""

    verb: Mapped[str]
    object: Mapped[str]
    before: Mapped[str | None]
    """JSON of what the action changed; null if there was nothing."""

    after: Mapped[str | None]
    """JSON of what was there afterwards; null if there was nothing."""


_APPEND_ONLY = {
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

for _dialect, _statements in _APPEND_ONLY.items():
    for _statement in _statements:
        _ddl = DDL(_statement)  # type: ignore[no-untyped-call]
        event.listen(AuditRow.__table__, "after_create", _ddl.execute_if(dialect=_dialect))
