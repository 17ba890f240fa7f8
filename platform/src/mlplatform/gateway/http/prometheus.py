"""Queries of Ray's dashboard to Prometheus, whose password Ray reads from no file.

Ray's head asks here, without credentials, as any job could. Only the queries that Ray 2.60 makes are passed on: its
health check, and the numbers on its page of data sets (`ray/dashboard/modules/data/data_head.py`).
"""

from __future__ import annotations

import re
from pathlib import Path

import httpx
from fastapi import APIRouter, Depends
from starlette.responses import PlainTextResponse, Response

from mlplatform.certificates import verification
from mlplatform.errors import SettingsError, UnreachableError
from mlplatform.gateway.http.access import OPEN
from mlplatform.gateway.http.auth import PROMETHEUS
from mlplatform.gateway.http.routing import router

_OF_RAY = re.compile(
    r"vector\(1\)"
    r"|sum\(ray_data_\w+\{SessionName='[\w.-]+'\}\) by \(dataset(, operator)?\)"
    r"|max_over_time\(sum\(ray_data_\w+\{SessionName='[\w.-]+'\}\) by \(dataset(, operator)?\)\[1h:1s\]\)",
    re.ASCII,
)

_USER = "prometheus"

_TIMEOUT = httpx.Timeout(10.0, connect=2.0)


class PrometheusQueries:
    """Endpoint for the queries of Ray's dashboard.

    Args:
        address: URL of Prometheus.
        password_file: file with its password.
    """

    def __init__(self, address: str, password_file: Path) -> None:
        try:
            password = password_file.read_text().strip()
        except OSError as error:
            raise SettingsError(
                f"MLPLATFORM_PROMETHEUS_PASSWORD_PATH={str(password_file)!r} cannot be read ({error.strerror}); "
                "set it to the file with Prometheus' password."
            ) from error
        self._address = address
        self._http = httpx.AsyncClient(
            base_url=address,
            auth=(_USER, password),
            timeout=_TIMEOUT,
            trust_env=False,
            verify=verification(address),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def routes(self) -> APIRouter:
        """Return the route, which needs no token."""
        routes = router(pages=True)
        routes.get(PROMETHEUS, dependencies=[Depends(OPEN)])(self._query)
        return routes

    async def _query(self, query: str = "") -> Response:
        """Return Prometheus' answer to a query of Ray's; 403 to any other."""
        if not _OF_RAY.fullmatch(query):
            return PlainTextResponse("Only queries of Ray's dashboard are answered here; use Prometheus itself.", 403)
        try:
            answer = await self._http.get("/api/v1/query", params={"query": query})
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"Prometheus at {self._address} does not answer ({reason}); start it.") from error
        return Response(answer.content, answer.status_code, media_type="application/json")
