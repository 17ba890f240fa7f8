"""Digests of the files of registered models' versions; each is recorded once and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from mlplatform.gateway.database.base import Base
from mlplatform.gateway.database.engine import Store, transaction


class ModelDigestRow(Base):
    """Files of a version. Its key outlives a change of the model's name, and differs from that of a later version."""

    __tablename__ = "model_digests"

    source: Mapped[str] = mapped_column(primary_key=True)
    """Source of the version, as MLflow has it."""

    created: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    """Time of the registration, in milliseconds since 1970, as MLflow has it."""

    files: Mapped[dict[str, Any]]
    """Path below the version's folder -> SHA-256 as 64 hexadecimal characters."""

    recorded: Mapped[datetime]


@dataclass(frozen=True)
class Recorded:
    """Digests of a version.

    Attributes:
        files: path -> SHA-256, hexadecimal.
        time: when they were recorded.
    """

    files: Mapping[str, str]
    time: datetime


class DigestStore(Store):
    """The table; every method raises UnreachableError while the database is unavailable."""

    @transaction
    def of(self, session: Session, source: str, created: int) -> Recorded | None:
        """Return the digests of a version; None before they are recorded."""
        row = session.get(ModelDigestRow, (source, created))
        return None if row is None else Recorded(row.files, row.recorded)

    @transaction
    def known(self, session: Session) -> set[tuple[str, int]]:
        """Return source and time of every version whose digests are recorded."""
        rows = session.execute(select(ModelDigestRow.source, ModelDigestRow.created))
        return {(row.source, row.created) for row in rows}

    @transaction
    def add(self, session: Session, source: str, created: int, files: Mapping[str, str]) -> None:
        """Record the digests of a version, unless they are recorded."""
        if session.get(ModelDigestRow, (source, created)) is None:
            session.add(ModelDigestRow(source=source, created=created, files=dict(files), recorded=datetime.now(UTC)))
