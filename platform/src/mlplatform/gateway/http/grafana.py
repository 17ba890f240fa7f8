"""Health of Grafana, for Ray's dashboard, which shows Grafana's panels while it is healthy.

Ray's head asks here, without credentials, so that Grafana needs no network with jobs (`ray/dashboard/modules/metrics/
metrics_head.py` of Ray 2.60). Browsers load the panels from Grafana itself.
"""

from __future__ import annotations

import httpx
from fastapi import APIRouter, Depends
from starlette.responses import Response

from mlplatform.certificates import verification
from mlplatform.errors import UnreachableError
from mlplatform.gateway.http.access import OPEN
from mlplatform.gateway.http.auth import GRAFANA
from mlplatform.gateway.http.routing import router

_TIMEOUT = httpx.Timeout(10.0, connect=2.0)


class GrafanaHealth:
    """Endpoint for the health check of Ray's dashboard.

    Args:
        address: URL of Grafana.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._http = httpx.AsyncClient(
            base_url=address, timeout=_TIMEOUT, trust_env=False, verify=verification(address)
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def routes(self) -> APIRouter:
        """Return the route, which needs no token."""
        routes = router(pages=True)
        routes.get(GRAFANA, dependencies=[Depends(OPEN)])(self._health)
        return routes

    async def _health(self) -> Response:
        try:
            answer = await self._http.get("/api/health")
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"Grafana at {self._address} does not answer ({reason}); start it.") from error
        return Response(answer.content, answer.status_code, media_type="application/json")
