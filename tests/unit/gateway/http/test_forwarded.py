"""Address and scheme of a client behind the reverse proxy."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mlplatform_gateway.http.clients import Forwarded

REPORTED = {"X-Forwarded-For": "198.51.100.9, 203.0.113.5", "X-Forwarded-Proto": "https"}


async def seen(proxy: str, client: str, headers: dict[str, str]) -> dict[str, str]:
    """Client and scheme of a request from `client`, as an application behind the middleware reads them."""

    async def show(request: Request) -> JSONResponse:
        assert request.client
        chain = request.headers.get("x-forwarded-for", "")
        return JSONResponse({"address": request.client.host, "scheme": request.url.scheme, "chain": chain})

    app = Forwarded(Starlette(routes=[Route("/", show)]), proxy)
    transport = httpx.ASGITransport(app, client=(client, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as caller:
        answer = await caller.get("/", headers=headers)
    found: dict[str, str] = answer.json()
    return found


@pytest.mark.anyio
async def test_proxy_reports_address_and_scheme() -> None:
    found = await seen("127.0.0.7", "127.0.0.7", REPORTED)
    assert found == {"address": "203.0.113.5", "scheme": "https", "chain": ""}


@pytest.mark.anyio
async def test_client_cannot_report_another_address() -> None:
    found = await seen("127.0.0.7", "127.0.0.8", REPORTED)
    assert found == {"address": "127.0.0.8", "scheme": "http", "chain": REPORTED["X-Forwarded-For"]}


@pytest.mark.anyio
async def test_unknown_proxy_is_nobody() -> None:
    assert (await seen("no-such-host.invalid", "127.0.0.8", REPORTED))["address"] == "127.0.0.8"
