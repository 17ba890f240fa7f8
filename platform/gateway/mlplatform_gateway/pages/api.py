"""Routes of the front page: the page, its overview and the login; and the wheel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from html import escape
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request
from jinja2 import Environment, PackageLoader
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from mlplatform.api import overview as api
from mlplatform.errors import UnreachableError
from mlplatform_gateway.http import request_body
from mlplatform_gateway.http.access import OPEN, USERS, User
from mlplatform_gateway.http.auth import FRONT_PAGE, INVALID, LOGIN_PAGE, STATIC, WHEELS, TokenCheck
from mlplatform_gateway.http.response_headers import ResponseHeaders
from mlplatform_gateway.pages.overview import FrontPage
from mlplatform_gateway.people.api import open_session, set_session
from mlplatform_gateway.people.sessions import Sessions
from mlplatform_gateway.settings import Tool

_PACKAGE = "mlplatform_gateway.pages"

_TEMPLATES = Environment(loader=PackageLoader(_PACKAGE, "templates"), autoescape=True)

_UPDATE_SECONDS = 2.0
_FORM_BYTES = 4 << 10

_HEADERS = {"Cache-Control": "no-store"}

_Follow = Annotated[str, Query(description="1 for server-sent events: everything at first, then fields that change.")]


def routes(check: TokenCheck, sessions: Sessions) -> APIRouter:
    """Return the routes of the page and the log-in."""
    router = APIRouter(include_in_schema=False)

    @router.get(FRONT_PAGE, dependencies=[USERS])
    async def show() -> Response:
        return _html("page.html")

    @router.get(LOGIN_PAGE, dependencies=[OPEN])
    async def form() -> Response:
        return _html("login.html")

    @router.post(LOGIN_PAGE, dependencies=[OPEN])
    async def log_in(request: Request) -> Response:
        """Open a session for the form's token and go to the page; the form with 401 or 403 for a wrong token.

        The page gets the key of its buttons in the fragment, which browsers send to no server.
        """
        body = await request_body.whole(request.receive, _FORM_BYTES, "send the token alone")
        token = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0].strip()
        opened = await open_session(check, sessions, f"Bearer {token}", request)
        if isinstance(opened, Response):
            text = bytes(opened.body).decode()
            problem = "This token is wrong; copy it without spaces." if text.startswith(INVALID) else text
            return _html("login.html", opened.status_code, problem=problem)
        response = RedirectResponse(f"{FRONT_PAGE}#key={sessions.key(opened)}", 303, _HEADERS)
        set_session(response, request, opened)
        return response

    return router


def overview_routes(page: FrontPage) -> APIRouter:
    """Return the route `GET /platform/overview`."""
    router = APIRouter()

    @router.get("/platform/overview", response_model=api.Overview)
    async def overview(request: Request, principal: User, follow: _Follow = "0") -> Any:
        """Jobs, queue, nodes and loads at a glance; with the jobs' load over the last hour."""
        read = partial(page.read, principal, partial(_address, request))
        if follow != "1":
            return await read()
        return StreamingResponse(_events(page, read), media_type="text/event-stream", headers=_HEADERS)

    return router


def static_files() -> Mount:
    """Return the style and the scripts of the pages."""
    # After an upgrade, a browser would mix modules of both versions.
    return Mount(STATIC, ResponseHeaders(StaticFiles(packages=[(_PACKAGE, "static")]), {"Cache-Control": "no-cache"}))


async def _events(page: FrontPage, read: Callable[[], Awaitable[api.Overview]]) -> AsyncIterator[str]:
    """Yield the fields of the overview whenever some have changed, as server-sent events."""
    sent: dict[str, Any] = {}
    while True:
        try:
            found = (await read()).model_dump(mode="json")
        except UnreachableError as error:
            found = {"problems": [f"{await page.full_disk()} {error}".strip()]}
        changed = {name: value for name, value in found.items() if name not in sent or sent[name] != value}
        # A comment while nothing changes: it finds browsers that are gone.
        yield f"data: {json.dumps(changed)}\n\n" if changed else ":\n\n"
        sent |= changed
        await asyncio.sleep(_UPDATE_SECONDS)


def _address(request: Request, tool: Tool) -> str:
    """Return the address of a tool's page, with a name of its own where the browser resolves it, for its own cookies.

    Otherwise, it has the name by which the browser reaches this host, be it by way of a forwarded port.
    """
    host, agent = request.url.hostname or "", request.headers.get("user-agent", "")
    resolves = "Safari" not in agent or "Chrom" in agent  # Safari does not resolve names below `localhost`
    if tool.name and host.startswith("ray."):
        host = f"{tool.name}.{host.removeprefix('ray.')}"
    elif tool.name and host in ("localhost", "127.0.0.1") and request.url.scheme == "http" and resolves:
        host = f"{tool.name}.localhost"
    return f"{request.url.scheme}://{host}:{tool.port}"


def _html(template: str, status: int = 200, **values: Any) -> Response:
    return HTMLResponse(_TEMPLATES.get_template(template).render(**values), status, _HEADERS)


def wheel_routes(folder: Path | None) -> APIRouter:
    """Return the routes of the wheel and of the page that links it.

    No token is needed, because `pip` cannot send one in a header, and the package is public source. People install it
    by its own address. By its name, `pip` could take another package of that name from its index.

    Args:
        folder: has the wheel; None if the gateway does not run in the platform's image.
    """

    router = APIRouter(dependencies=[OPEN], include_in_schema=False)

    @router.get(WHEELS)
    async def index() -> Response:
        links = "".join(f'<a href="{escape(name)}">{escape(name)}</a><br>\n' for name in _found(folder))
        return HTMLResponse(f"<!DOCTYPE html>\n<title>mlplatform</title>\n{links}")

    @router.get(f"{WHEELS}{{file}}")
    async def download(file: str) -> Response:
        found = _found(folder).get(file)
        if found is None:
            return PlainTextResponse(f"The gateway does not have this wheel; {WHEELS} lists those that it has.", 404)
        return FileResponse(found, media_type="application/zip")

    return router


def _found(folder: Path | None) -> dict[str, Path]:
    return {} if folder is None else {path.name: path for path in sorted(folder.glob("*.whl"))}
