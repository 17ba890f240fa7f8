"""Queries of Ray's dashboard to Prometheus: they need no token, and nothing else is answered."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import httpx
import pytest
from ray_head import BOUND_S, NO_TLS, Head, served
from starlette.applications import Starlette
from starlette.types import ASGIApp

from mlplatform.errors import PlatformError
from mlplatform.gateway.http.auth import PROMETHEUS, TokenAuth, TokenCheck
from mlplatform.gateway.http.errors import handle_error
from mlplatform.gateway.http.monitoring import Monitoring, prometheus_queries

DATA = "sum(ray_data_output_rows{SessionName='session_2026-11-24_16-30-48_539976_8'}) by (dataset, operator)"

BASIC = "Basic " + base64.b64encode(b"prometheus:secret").decode()


def answering(prometheus: str) -> ASGIApp:
    route = prometheus_queries(Monitoring("Prometheus", prometheus, "secret"))
    app = Starlette(routes=[route], exception_handlers={PlatformError: handle_error})
    return TokenAuth(app, TokenCheck(lambda: "token"))


@pytest.fixture
def gateway(head: Head) -> Iterator[httpx.Client]:
    with (
        served(answering(head.address)) as address,
        httpx.Client(base_url=address, timeout=BOUND_S, verify=NO_TLS) as client,
    ):
        yield client


@pytest.mark.parametrize("query", ["vector(1)", DATA, f"max_over_time({DATA}[1h:1s])"])
def test_queries_of_dashboard_reach_prometheus_with_password(gateway: httpx.Client, query: str) -> None:
    received = gateway.get(PROMETHEUS, params={"query": query}).json()
    assert httpx.URL(received["target"]).params["query"] == query
    assert ["authorization", BASIC] in received["headers"]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "up",
        "mlplatform_jobs",
        "vector(1) or up",
        DATA + " or up",
        DATA.replace("ray_data_output_rows", "ray_node_mem_used"),
        DATA.replace("session_2026", "'} or up{a='"),
    ],
)
def test_other_queries_are_rejected(gateway: httpx.Client, query: str) -> None:
    answer = gateway.get(PROMETHEUS, params={"query": query})
    assert answer.status_code == 403
    assert "Only queries of Ray's dashboard" in answer.text


@pytest.mark.parametrize("path", ["/platform/prometheus/api/v1/targets", "/platform/prometheus/", f"{PROMETHEUS}/x"])
def test_other_paths_of_prometheus_stay_closed(gateway: httpx.Client, path: str) -> None:
    assert gateway.get(path, params={"query": "vector(1)"}).status_code == 401


def test_unavailable_prometheus_is_named(closed_port: int) -> None:
    with served(answering(f"http://127.0.0.1:{closed_port}")) as address:
        answer = httpx.get(f"{address}{PROMETHEUS}", params={"query": "vector(1)"}, verify=NO_TLS)
    assert answer.status_code == 503
    assert "Prometheus at" in answer.text
