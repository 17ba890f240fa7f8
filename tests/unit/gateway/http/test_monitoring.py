"""Queries of Ray's dashboard to Prometheus and Grafana: they need no token, and nothing else is answered."""

import base64
from collections.abc import Iterator

import httpx
import pytest
from ray_head import BOUND_S, NO_TLS, Head, served
from starlette.types import ASGIApp

from mlplatform_gateway.http.application import application
from mlplatform_gateway.http.auth import GRAFANA, PROMETHEUS, TokenAuth, TokenCheck
from mlplatform_gateway.monitoring.ray_dashboard import Monitoring, routes

DATA = "sum(ray_data_output_rows{SessionName='session_2026-11-24_16-30-48_539976_8'}) by (dataset, operator)"

BASIC = "Basic " + base64.b64encode(b"prometheus:secret").decode()


def answering(address: str) -> ASGIApp:
    """A gateway for which both services have an address."""
    router = routes(Monitoring("Grafana", address), Monitoring("Prometheus", address, "secret"))
    return TokenAuth(application(router.routes), TokenCheck(lambda: "token"))


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
        *("", "up", "mlplatform_jobs", "vector(1) or up", DATA + " or up"),
        DATA.replace("ray_data_output_rows", "ray_node_mem_used"),
        DATA.replace("session_2026", "'} or up{a='"),
    ],
)
def test_other_queries_are_rejected(gateway: httpx.Client, query: str) -> None:
    answer = gateway.get(PROMETHEUS, params={"query": query})
    assert answer.status_code == 403
    assert "Only queries of Ray's dashboard" in answer.text


def test_health_check_of_dashboard_reaches_grafana(gateway: httpx.Client) -> None:
    received = gateway.get(f"{GRAFANA}?path=/api/admin").json()
    assert received["target"] == "/api/health?"
    assert not [name for name, _ in received["headers"] if name in ("authorization", "cookie")]


@pytest.mark.parametrize("service", ["prometheus", "grafana"])
@pytest.mark.parametrize("path", ["/api/v1/targets", "/api/search", "/", "/api/v1/query/x", "/api/health/x"])
def test_other_paths_of_services_stay_closed(gateway: httpx.Client, service: str, path: str) -> None:
    assert gateway.get(f"/platform/{service}{path}", params={"query": "vector(1)"}).status_code == 401


@pytest.mark.parametrize(("path", "name"), [(PROMETHEUS, "Prometheus"), (GRAFANA, "Grafana")])
def test_unavailable_service_is_named(closed_port: int, path: str, name: str) -> None:
    with served(answering(f"http://127.0.0.1:{closed_port}")) as address:
        answer = httpx.get(f"{address}{path}", params={"query": "vector(1)"}, verify=NO_TLS)
    assert answer.status_code == 503
    assert f"{name} at http://127.0.0.1" in answer.text
