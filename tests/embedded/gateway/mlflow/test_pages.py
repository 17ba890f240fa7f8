"""Requests of browsers' pages at the stack's MLflow server."""

from __future__ import annotations

import pytest
from guarded_mlflow import Server, refused


def origins(address: str) -> dict[str, bool]:
    """Origins of pages, and whether these may use a server at `address`."""
    host, _, port = address.removeprefix("http://").partition(":")
    return {
        address: True,
        address.upper(): True,
        f"http://{host}": False,
        f"http://{host}:{int(port) - 1}": False,
        f"http://{host}:{port}0": False,
        f"http://localhost:{port}": False,
        f"http://[::1]:{port}": False,
        f"http://evil.example:{port}": False,
        f"{address}.evil.example": False,
        f"file://{host}:{port}": False,
        "null": False,
        "": False,
    }


def test_only_own_pages_change_and_read_anything(server: Server) -> None:
    for number, (origin, allowed) in enumerate(origins(server.address).items()):
        sent = {"name": f"page-{number}"}
        for method, path in (("POST", "experiments/create"), ("GET", "experiments/get-by-name")):
            values = sent if method == "POST" else {"experiment_name": sent["name"]}
            answer = server.send("admin", method, path, values, headers={"Origin": origin})
            assert answer.is_success == allowed, (origin, method, answer.text)
            assert not [name for name in answer.headers if name.startswith("access-control-")], origin
            assert allowed or refused(answer, "open its own address"), answer.text
        preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        answer = server.send("admin", "OPTIONS", "/ajax-api/2.0/mlflow/runs/create", headers=preflight)
        assert allowed or "access-control-allow-origin" not in answer.headers, origin
    name = {"experiment_name": "page-3"}
    assert server.send("admin", "GET", "experiments/get-by-name", name).status_code == 404, "a page made it"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:28123", 200),
        ("127.0.0.1:5000", 200),
        ("[::1]:8001", 200),
        ("localhost", 200),
        ("mlflow:8000", 200),
        ("evil.example:8000", 403),
        ("localhost.evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("evil.example", 403),
    ],
)
def test_loopback_names_have_any_port(server: Server, host: str, status: int) -> None:
    headers = {"Host": host, "Origin": f"http://{host}"}
    answer = server.send("person", "GET", "experiments/get", {"experiment_id": "0"}, headers=headers)
    assert answer.status_code == status, answer.text


def test_second_origin_does_not_hide_first(server: Server) -> None:
    pair = [("Origin", server.address), ("Origin", "http://127.0.0.1:1")]
    for headers in (pair, pair[::-1]):
        assert server.send("admin", "POST", "experiments/create", {"name": "pair"}, headers=headers).status_code == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "config"), ("PUT", "config"), ("POST", "message"), ("GET", "sessions/1/stream"), ("GET", "")],
)
def test_assistant_is_off_for_everybody(server: Server, method: str, path: str) -> None:
    for user in ("admin", "alice"):
        answer = server.send(user, method, f"/ajax-api/3.0/mlflow/assistant/{path}", {"message": "hi"})
        assert refused(answer, "assistant is off"), answer.text
