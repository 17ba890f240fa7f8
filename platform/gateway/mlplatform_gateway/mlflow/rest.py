"""Client of MLflow's REST API for asyncio, with the errors of `mlplatform.client.mlflow_rest`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Self
from urllib.parse import quote

import httpx

from mlplatform.client.mlflow_rest import ANSWER_SECONDS, Account, MlflowServer, next_page, sent

_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"


class AsyncMlflowRest:
    """`MlflowRest` for asyncio, with the same methods and errors."""

    def __init__(self, tracking_uri: str, account: Account) -> None:
        """Connect with the first request; the arguments are those of `MlflowRest`."""
        self._server = MlflowServer(tracking_uri, account)
        self._http = httpx.AsyncClient(**self._server.options(ANSWER_SECONDS))
        self._artifacts = f"{tracking_uri.rstrip('/')}{_ARTIFACTS}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def call(self, method: str, path: str, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Do the same as `MlflowRest.call`."""
        try:
            answer = await self._http.request(method, path, **sent(method, values))
        except httpx.TransportError as error:
            raise self._server.unavailable(error) from error
        return self._server.read(path, answer)

    async def list_files(self, folder: str) -> list[dict[str, Any]]:
        """Return what a folder of the server's artifacts has: `path`, its last part; `is_dir`; and `file_size`."""
        found: list[dict[str, Any]] = (await self.call("GET", self._artifacts, {"path": folder})).get("files", [])
        return found

    async def read_file(self, path: str) -> AsyncIterator[bytes]:
        """Yield the parts of a file of the server's artifacts."""
        try:
            async with self._http.stream("GET", f"{self._artifacts}/{quote(path)}") as answer:
                if not answer.is_success:
                    await answer.aread()
                    self._server.read(path, answer)
                async for part in answer.aiter_bytes():
                    yield part
        except httpx.TransportError as error:
            raise self._server.unavailable(error) from error

    async def all(self, method: str, path: str, field: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Do the same as `MlflowRest.all`."""
        found: list[dict[str, Any]] = []
        page: Mapping[str, Any] | None = values
        while page is not None:
            answer = await self.call(method, path, page)
            found += answer.get(field, [])
            page = next_page(values, answer)
        return found
