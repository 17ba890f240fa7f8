"""Questions of Ray's dashboard to Prometheus and Grafana, which are on no network with jobs.

Ray's head asks here, without credentials, as any job could. So only what Ray 2.60 asks is passed on: the health checks,
and the queries for the numbers on its page of data sets (`ray/dashboard/modules/metrics/metrics_head.py` and
`ray/dashboard/modules/data/data_head.py`). Ray reads Prometheus' password from no file. Browsers load Grafana's panels
from Grafana itself.
"""

from __future__ import annotations

import re

import httpx
from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from mlplatform.client.certificates import verification
from mlplatform.errors import UnreachableError
from mlplatform_gateway.http.access import OPEN
from mlplatform_gateway.http.auth import GRAFANA, PROMETHEUS

_OF_RAY = re.compile(
    r"vector\(1\)"
    r"|sum\(ray_data_\w+\{SessionName='[\w.-]+'\}\) by \(dataset(, operator)?\)"
    r"|max_over_time\(sum\(ray_data_\w+\{SessionName='[\w.-]+'\}\) by \(dataset(, operator)?\)\[1h:1s\]\)",
    re.ASCII,
)

_USER = "prometheus"
_TIMEOUT = httpx.Timeout(10.0, connect=2.0)


class Monitoring:
    """Client of Prometheus or Grafana, with a password if its questions need one."""

    def __init__(self, name: str, address: str, password: str | None = None) -> None:
        self._name, self._address = name, address
        auth = None if password is None else (_USER, password)
        self._http = httpx.AsyncClient(
            base_url=address, auth=auth, timeout=_TIMEOUT, trust_env=False, verify=verification(address)
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def answer(self, path: str, **params: str) -> Response:
        """Return its answer.

        Raises:
            UnreachableError: it does not answer.
        """
        try:
            answer = await self._http.get(path, params=params)
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"{self._name} at {self._address} does not answer ({reason}); start it.") from error
        return Response(answer.content, answer.status_code, media_type="application/json")


def routes(grafana: Monitoring, prometheus: Monitoring | None) -> APIRouter:
    """Return the routes for the health check and the queries of Ray's dashboard, which need no token."""
    router = APIRouter(dependencies=[OPEN], include_in_schema=False)

    @router.get(GRAFANA)
    async def health() -> Response:
        return await grafana.answer("/api/health")

    if prometheus is not None:

        @router.get(PROMETHEUS)
        async def answer(query: str = "") -> Response:
            """Return Prometheus' answer to a query of Ray's; 403 to any other."""
            if not _OF_RAY.fullmatch(query):
                text = "Only queries of Ray's dashboard are answered here; use Prometheus itself."
                return PlainTextResponse(text, 403)
            return await prometheus.answer("/api/v1/query", query=query)

    return router
