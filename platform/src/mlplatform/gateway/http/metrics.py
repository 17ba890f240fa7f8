"""Metrics of the gateway for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mlplatform.gateway.http.auth import TokenAuth, TokenCheck
from mlplatform.gateway.jobs.starts import WARM, Start

PATH = "/platform/metrics"


class Metrics:
    """Counters since the start of this process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._starts = Counter(
            "mlplatform_starts",
            "Processes of jobs, by how they started.",
            ("role", "start"),
            registry=self._registry,
        )
        # From the beginning, because a rate does not see the first value of a series.
        for labels in product(("driver", "worker"), ("warm", "cold")):
            self._starts.labels(*labels)

    def count(self, starts: Mapping[Start, int]) -> None:
        """Add starts of processes."""
        for start, number in starts.items():
            self._starts.labels(start.role, "warm" if start.reason == WARM else "cold").inc(number)

    def route(self, token: Callable[[], str]) -> Route:
        """Return the route `GET /platform/metrics`.

        Args:
            token: returns the current token of Prometheus, the only one that the route accepts.
        """

        async def get(_: Request) -> Response:
            return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

        auth = Middleware(TokenAuth, check=TokenCheck(token), open_paths=(), open_folders=())
        return Route(PATH, get, methods=["GET"], middleware=[auth])
