"""Headers of responses, with the policies of the pages; and address and scheme of a client behind the reverse proxy."""

import httpx
import pytest
from ray_head import NO_TLS, Head
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from started_gateway import StartedGateway

from mlplatform_gateway.http.clients import Forwarded
from mlplatform_gateway.http.response_headers import OWN_PAGES, RAY_PAGES

REPORTED = {"X-Forwarded-For": "198.51.100.9, 203.0.113.5", "X-Forwarded-Proto": "https"}


def test_every_response_has_security_headers(tmp_path_factory: pytest.TempPathFactory, head: Head) -> None:
    own = ("/platform/login", "/platform/health", "/platform/static/page.js", "/platform/jobs/x", "/echo")
    ray = ("/", "/static/js/main.js", "/nodes", "/api/jobs/01000000")
    with StartedGateway(tmp_path_factory.mktemp("gateway"), head.address).running() as client:
        answers = {path: client.get(path) for path in (*own, *ray)}
        answers["without token"] = httpx.get(f"{client.base_url}/api/jobs/", verify=NO_TLS)
    for path, answer in answers.items():
        expected = RAY_PAGES if path in ray else OWN_PAGES
        assert answer.headers.get_list("content-security-policy") == [expected], path
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"], path
        assert answer.headers.get_list("x-frame-options") == ["DENY"], path
        assert answer.headers.get_list("referrer-policy") == ["same-origin"], path
        assert "mlplatform" in str(answer.headers).lower(), path


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
    return answer.json()


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
