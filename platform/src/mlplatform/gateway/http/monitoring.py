"""Questions of Ray's dashboard to Prometheus and Grafana, which are on no network with jobs.

Ray's head asks here, without credentials, as any job could. So only what Ray 2.60 asks is passed on: the health checks,
and the queries for the numbers on its page of data sets (`ray/dashboard/modules/metrics/metrics_head.py` and
`ray/dashboard/modules/data/data_head.py`). Ray reads Prometheus' password from no file. Browsers load Grafana's panels
from Grafana itself.
"""

from __future__ import annotations

import re

import httpx
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mlplatform.certificates import verification
from mlplatform.errors import UnreachableError
from mlplatform.gateway.http.auth import GRAFANA, PROMETHEUS

_OF_RAY = re.compile(
    r"vector\(1\)"
    r"|sum\(ray_data_\w+\{SessionName='[\w.-]+'\}\) by \(dataset(, operator)?\)"
    r"|max_over_time\(sum\(ray_data_\w+\{SessionName='[\w.-]+'\}\) by \(dataset(, operator)?\)\[1h:1s\]\)",
    re.ASCII,
)

_USER = "prometheus"

_TIMEOUT = httpx.Timeout(10.0, connect=2.0)


class Monitoring:
    """Client of one of the two.

    Args:
        name: Prometheus or Grafana.
        address: its URL.
        password: its password; None if the question needs none.
    """

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


def grafana_health(grafana: Monitoring) -> Route:
    """Return the route for the health check of Ray's dashboard, which needs no token."""

    async def get(_: Request) -> Response:
        return await grafana.answer("/api/health")

    return Route(GRAFANA, get, methods=["GET"])


def prometheus_queries(prometheus: Monitoring) -> Route:
    """Return the route for the queries of Ray's dashboard, which needs no token."""

    async def get(request: Request) -> Response:
        """Return Prometheus' answer to a query of Ray's; 403 to any other."""
        query = request.query_params.get("query", "")
        if not _OF_RAY.fullmatch(query):
            return PlainTextResponse("Only queries of Ray's dashboard are answered here; use Prometheus itself.", 403)
        return await prometheus.answer("/api/v1/query", query=query)

    return Route(PROMETHEUS, get, methods=["GET"])
