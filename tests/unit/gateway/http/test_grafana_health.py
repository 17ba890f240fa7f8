"""Grafana's health for Ray's dashboard: it needs no token, and nothing else of Grafana is answered."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from ray_head import BOUND_S, NO_TLS, Head, served
from starlette.applications import Starlette
from starlette.types import ASGIApp

from mlplatform.errors import PlatformError
from mlplatform.gateway.http.auth import GRAFANA, TokenAuth, TokenCheck
from mlplatform.gateway.http.errors import handle_error
from mlplatform.gateway.http.monitoring import Monitoring, grafana_health


def answering(grafana: str) -> ASGIApp:
    route = grafana_health(Monitoring("Grafana", grafana))
    app = Starlette(routes=[route], exception_handlers={PlatformError: handle_error})
    return TokenAuth(app, TokenCheck(lambda: "token"))


@pytest.fixture
def gateway(head: Head) -> Iterator[httpx.Client]:
    with (
        served(answering(head.address)) as address,
        httpx.Client(base_url=address, timeout=BOUND_S, verify=NO_TLS) as client,
    ):
        yield client


def test_health_check_of_dashboard_reaches_grafana(gateway: httpx.Client) -> None:
    received = gateway.get(f"{GRAFANA}?path=/api/admin").json()
    assert received["target"] == "/api/health?"
    assert not [name for name, _ in received["headers"] if name in ("authorization", "cookie")]


@pytest.mark.parametrize("path", ["/platform/grafana/api/search", "/platform/grafana/", f"{GRAFANA}/x"])
def test_other_paths_of_grafana_stay_closed(gateway: httpx.Client, path: str) -> None:
    assert gateway.get(path).status_code == 401


def test_unreachable_grafana_is_named(closed_port: int) -> None:
    with served(answering(f"http://127.0.0.1:{closed_port}")) as address:
        answer = httpx.get(f"{address}{GRAFANA}", verify=NO_TLS)
    assert answer.status_code == 503
    assert "Grafana at http://127.0.0.1" in answer.text
