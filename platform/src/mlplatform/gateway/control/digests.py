"""Recording of the digests of registered models: at once when MLflow reports a version, and by a search for others."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from mlplatform.errors import PlatformError
from mlplatform.gateway.models.digests import DigestStore
from mlplatform.gateway.upstream.mlflow import ModelFiles
from mlplatform.throttle import ThrottledWarning

_SEARCH_SECONDS = 300.0

_log = logging.getLogger(__name__)


class ModelDigests:
    """Digests of all versions.

    Args:
        store: where they are recorded.
        files: files of MLflow's models; None without an MLflow.
    """

    def __init__(self, store: DigestStore, files: ModelFiles | None) -> None:
        self._store = store
        self._files = files
        self._reported = asyncio.Event()
        self._warn = ThrottledWarning(_log)

    def wake(self) -> None:
        """Search at once, because there may be a new version."""
        self._reported.set()

    async def run(self) -> None:
        """Record what is missing at the start, after each report and every five minutes; never returns."""
        while self._files is not None:
            self._reported.clear()
            try:
                await self.record_missing()
            except PlatformError as error:
                self._warn("Digests of registered models are not complete: %s", error)
            except Exception:
                _log.exception("Digests of registered models are not complete; this will be retried.")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._reported.wait(), _SEARCH_SECONDS)

    async def record_missing(self) -> None:
        """Record the digests of every version that has none yet and has files.

        Raises:
            UnreachableError: MLflow or the database is unavailable.
            AccessError: MLflow rejects the gateway's account.
        """
        if self._files is None:
            return
        known = await self._store.known()
        for version in await self._files.versions():
            if (version.source, version.created) in known:
                continue
            if files := await self._files.digests(version):
                await self._store.add(version.source, version.created, files)
