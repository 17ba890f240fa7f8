"""Table of the audit log; `migrations/` creates and upgrades it, with triggers that refuse every change of a row."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Identity, Integer
from sqlalchemy.orm import Mapped, mapped_column

from mlplatform.gateway.database.base import Base


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
