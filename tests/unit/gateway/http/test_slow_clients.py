"""Clients that send their request slowly: the headers have a bound in time, answers have none."""

from __future__ import annotations

import asyncio
import logging
import runpy
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from ray_head import BOUND_S, served
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from mlplatform.compat.uvicorn_h11 import BoundedHeaders
from mlplatform.gateway import app

HEADER_SECONDS = 0.8
"""Enough for a client on a busy machine to send its headers."""


class Quick(BoundedHeaders):
    HEADER_SECONDS = HEADER_SECONDS


async def slow(request: Request) -> PlainTextResponse:
    await asyncio.sleep(1.5 * HEADER_SECONDS)
    return PlainTextResponse("done")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with served(Starlette(routes=[Route("/", slow, methods=["GET", "POST"])]), http=Quick) as address:
        yield address


def connection(server: str) -> socket.socket:
    host, port = server.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), BOUND_S)


def is_closed_while_sending(client: socket.socket) -> bool:
    """Send a header byte by byte until the server closes the connection."""
    client.settimeout(0.05)
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        try:
            client.sendall(b"x")
            if client.recv(1) == b"":
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: gateway\r\nX-Slow: "])
def test_connection_with_incomplete_headers_is_closed(server: str, sent: bytes) -> None:
    with connection(server) as client:
        client.sendall(sent)
        assert is_closed_while_sending(client)


def test_gateways_program_serves_with_bound_on_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: given.update(options, app=app))
    monkeypatch.setattr(app, "create_app", lambda config: Starlette())
    monkeypatch.setattr(logging.getLogger("httpx"), "setLevel", lambda level: None)
    monkeypatch.setattr(BoundedHeaders, "HEADER_SECONDS", HEADER_SECONDS)
    runpy.run_module("mlplatform.gateway", run_name="__main__")
    with (
        served(given["app"], **({"http": given["http"]} if "http" in given else {})) as address,
        connection(address) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: gateway\r\nX-Slow: ")
        assert is_closed_while_sending(client)


def test_incomplete_second_request_is_closed(server: str) -> None:
    with connection(server) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n")
        received = b""
        while not received.endswith(b"done"):
            received += client.recv(4096)
        client.sendall(b"GET / HTTP/1.1\r\nHost: gateway\r\nX-Slow: ")
        assert is_closed_while_sending(client)


def test_slow_answer_and_slow_body_are_not_cut(server: str) -> None:
    def body() -> Iterator[bytes]:
        yield b"first"
        time.sleep(1.5 * HEADER_SECONDS)  # the behaviour under test: a pause that outlasts the bound of the headers
        yield b"second"

    with httpx.Client(base_url=server, timeout=BOUND_S, trust_env=False) as client:
        assert [client.post("/", content=body()).text for _ in range(2)] == ["done", "done"]
