"""Clients that send their request slowly: the headers have a bound in time, answers have none."""

import asyncio
import logging
import runpy
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from ray_head import BOUND_S, served
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mlplatform_gateway import app
from mlplatform_gateway.compat.uvicorn_h11 import BoundedHeaders
from mlplatform_gateway.errors import RequestError
from mlplatform_gateway.http import request_body
from mlplatform_gateway.http.errors import error_response

HEADER_SECONDS = 0.8
"""Enough for a client on a busy machine to send its headers."""


class Quick(BoundedHeaders):
    HEADER_SECONDS = HEADER_SECONDS


async def slow(request: Request) -> PlainTextResponse:
    await asyncio.sleep(1.5 * HEADER_SECONDS)
    return PlainTextResponse("done")


async def whole(request: Request) -> Response:
    try:
        await request_body.whole(request.receive, 1 << 20, "send less", HEADER_SECONDS)
    except RequestError as error:
        return error_response(error)
    return PlainTextResponse("done")


async def refused(_: Request) -> PlainTextResponse:
    return PlainTextResponse("no token", 401)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    routes = [Route("/", slow, methods=["GET", "POST"])]
    routes += [Route(f"/{view.__name__}", view, methods=["POST"]) for view in (whole, refused)]
    with served(Starlette(routes=routes), http=Quick) as address:
        yield address


def connection(server: str) -> socket.socket:
    host, port = server.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), BOUND_S)


def trickled(client: socket.socket) -> bytes:
    """Send bytes one by one until the server closes the connection; return what it answered."""
    client.settimeout(0.05)
    received, deadline = b"", time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        try:
            client.sendall(b"x")
            if not (part := client.recv(4096)):
                return received
            received += part
        except TimeoutError:
            continue
        except ConnectionError:
            return received
    raise AssertionError(f"The connection is still open after {BOUND_S} s.")


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: gateway\r\nX-Slow: "])
def test_connection_with_incomplete_headers_is_closed(server: str, sent: bytes) -> None:
    with connection(server) as client:
        client.sendall(sent)
        trickled(client)


def test_gateways_program_serves_with_bound_on_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_GATEWAY_DATABASE", f"sqlite:///{tmp_path}/gateway.db")
    given: dict[str, Any] = {}
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: given.update(options, app=app))
    monkeypatch.setattr(app, "create_app", lambda config: Starlette())
    monkeypatch.setattr(logging.getLogger("httpx"), "setLevel", lambda level: None)
    monkeypatch.setattr(BoundedHeaders, "HEADER_SECONDS", HEADER_SECONDS)
    runpy.run_module("mlplatform_gateway", run_name="__main__")
    assert 3000 <= given["limit_concurrency"] <= 10_000  # connections, of 20,000 descriptors and 768 MiB
    with (
        served(given["app"], **({"http": given["http"]} if "http" in given else {})) as address,
        connection(address) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: gateway\r\nX-Slow: ")
        trickled(client)


def test_incomplete_second_request_is_closed(server: str) -> None:
    with connection(server) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n")
        received = b""
        while not received.endswith(b"done"):
            received += client.recv(4096)
        client.sendall(b"GET / HTTP/1.1\r\nHost: gateway\r\nX-Slow: ")
        trickled(client)


@pytest.mark.parametrize("path", ["/whole", "/refused"])
def test_body_that_trickles_is_cut(server: str, path: str) -> None:
    """As 200 log-ins with a byte every 20 s did, which were all open after 150 s."""
    with connection(server) as client:
        client.sendall(f"POST {path} HTTP/1.1\r\nHost: gateway\r\nContent-Length: 100000000\r\n\r\n".encode())
        received = trickled(client)
    assert received.startswith((b"HTTP/1.1 408", b"HTTP/1.1 401"))


def test_connection_serves_again_after_early_answer(server: str) -> None:
    with httpx.Client(base_url=server, timeout=BOUND_S, trust_env=False) as client:
        assert [client.post("/refused", content=b"short").status_code for _ in range(3)] == [401] * 3


def test_slow_answer_and_slow_body_are_not_cut(server: str) -> None:
    def body() -> Iterator[bytes]:
        yield b"first"
        time.sleep(1.5 * HEADER_SECONDS)  # the behaviour under test: a pause that outlasts the bound of the headers
        yield b"second"

    with httpx.Client(base_url=server, timeout=BOUND_S, trust_env=False) as client:
        assert [client.post("/", content=body()).text for _ in range(2)] == ["done", "done"]
