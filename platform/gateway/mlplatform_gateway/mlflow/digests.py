"""Digests of the files of registered models' versions: each is recorded once and never changed.

They are recorded at once when MLflow reports a version, and by a search for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, Engine, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from mlplatform_gateway.database.engine import Base, Store, transaction
from mlplatform_gateway.jobs.containment import repeat
from mlplatform_gateway.mlflow.client import ModelFiles

_SEARCH_SECONDS = 300.0


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


class ModelDigests(Store):
    """Digests of all versions; every method raises UnreachableError while the database is unavailable.

    Args:
        files: files of MLflow's models; None without an MLflow.
    """

    def __init__(self, engine: Engine, files: ModelFiles | None) -> None:
        super().__init__(engine)
        self._files = files
        self._reported = asyncio.Event()

    @transaction
    def of(self, session: Session, source: str, created: int) -> ModelDigestRow | None:
        """Return the digests of a version; None before they are recorded."""
        return session.get(ModelDigestRow, (source, created))

    def wake(self) -> None:
        """Search at once, because there may be a new version."""
        self._reported.set()

    async def run(self) -> None:
        """Record what is missing at the start, after each report and every five minutes; never returns."""
        await repeat(self.record_missing, self._until_reported, "Digests of registered models are not complete")

    async def _until_reported(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._reported.wait(), _SEARCH_SECONDS)

    async def record_missing(self) -> None:
        """Record the digests of every version that has none yet and has files.

        Raises:
            UnreachableError: MLflow or the database is unavailable.
            AccessError: MLflow rejects the gateway's account.
        """
        self._reported.clear()
        if self._files is None:
            return
        known = await self._known()
        for version in await self._files.versions():
            if (version.source, version.created) in known:
                continue
            if files := await self._files.digests(version):
                await self._add(version.source, version.created, files)

    @transaction
    def _known(self, session: Session) -> set[tuple[str, int]]:
        rows = session.execute(select(ModelDigestRow.source, ModelDigestRow.created))
        return {(row.source, row.created) for row in rows}

    @transaction
    def _add(self, session: Session, source: str, created: int, files: Mapping[str, str]) -> None:
        if session.get(ModelDigestRow, (source, created)) is None:
            session.add(ModelDigestRow(source=source, created=created, files=dict(files), recorded=datetime.now(UTC)))
