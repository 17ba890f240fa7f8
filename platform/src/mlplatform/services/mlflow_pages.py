"""Guards around the MLflow server: foreign origins, its assistant and security headers; and its first page.

ASGI applications around MLflow's, because MLflow serves some of its routes by Flask and others past it.
"""

from __future__ import annotations

import base64
import hmac
import re
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from mlplatform.origins import foreign_origin

_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"SAMEORIGIN",
    b"referrer-policy": b"same-origin",
    b"content-security-policy": b"frame-ancestors 'self'; object-src 'none'; base-uri 'self'",
}

_SCRIPT = "/mlplatform-first-visit.js"

_VISITED_SECONDS = 365 * 24 * 3600

_ASSISTANT = re.compile(r"(/ajax-api|/api)/[0-9.]+/mlflow/assistant(/|$)")


def for_own_pages(app: Any) -> Any:
    """Return an ASGI application that refuses every request of pages of another origin, and MLflow's assistant.

    MLflow 3.17 accepts changes by any page of any port of `localhost`, with the browser's credentials, and its
    assistant runs commands as the server's user for whoever connects from loopback. No setting changes either.
    """

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        refusal = None
        if scope["type"] in ("http", "websocket"):
            if (origin := foreign_origin(scope["headers"])) is not None:
                refusal = f"Pages of {origin!r} may not use MLflow; open its own address."
            elif _ASSISTANT.match(scope["path"]):
                refusal = "MLflow's assistant is off here, because it runs commands on the server."
            # MLflow refuses its own page at `mlflow.localhost`, and answers that of `localhost` with CORS headers.
            scope = {**scope, "headers": [item for item in scope["headers"] if item[0] != b"origin"]}
        await (PlainTextResponse(refusal, 403) if refusal else app)(scope, receive, send)

    return guarded


def with_password(app: Any, file: Path) -> Any:
    """Return an ASGI application that asks for the password in a file, except for `/health`; any user name will do."""
    password = file.read_bytes().strip()
    hint = f"Log in with any user name and the password in {file}."

    async def asking(scope: Any, receive: Any, send: Any) -> None:
        refusal = None
        if scope["type"] in ("http", "websocket") and scope["path"] != "/health":
            given = _password(Headers(scope=scope).get("authorization", ""))
            if not hmac.compare_digest(given, password):
                refusal = PlainTextResponse(hint, 401, {"WWW-Authenticate": 'Basic realm="MLflow"'})
        await (refusal or app)(scope, receive, send)

    return asking


def _password(authorization: str) -> bytes:
    """Return the password of a header of Basic authentication (RFC 7617); empty if there is none."""
    scheme, _, encoded = authorization.partition(" ")
    try:
        return base64.b64decode(encoded, validate=True).partition(b":")[2] if scheme.lower() == "basic" else b""
    except ValueError:
        return b""


def with_headers(app: Any) -> Any:
    """Return an ASGI application that adds security headers to every answer that has none of its own."""

    async def secured(scope: Any, receive: Any, send: Any) -> None:
        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message["headers"]}
                added = [(name, value) for name, value in _HEADERS.items() if name not in there]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await app(scope, receive, answer if scope["type"] == "http" else send)

    return secured


def opening_on_training(app: Any) -> Any:
    """Return an ASGI application whose page opens on training in a browser that has not been there before.

    MLflow 3.17 has no setting for what its page shows first; the page keeps that in the browser. So the first visit
    gets a page of ours, whose script (`mlflow_first_visit.js`) sets what the browser has no value for, and then loads
    MLflow's. The script is a file of its own, so that it needs no exception from a Content-Security-Policy.
    """
    script = resources.files("mlplatform.services").joinpath("mlflow_first_visit.js").read_text()
    page = f'<!doctype html><title>MLflow</title><script defer src="{_SCRIPT.lstrip("/")}"></script>'

    async def opening(scope: Any, receive: Any, send: Any) -> None:
        answer: Any = app
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] in ("/", _SCRIPT):
            headers = Headers(scope=scope)
            if scope["path"] == _SCRIPT:
                answer = Response(script, media_type="text/javascript", headers={"Cache-Control": "max-age=3600"})
            elif _is_first_visit(scope, headers):
                answer = HTMLResponse(page, headers={"Cache-Control": "no-store"})
                answer.set_cookie(_cookie(headers), "1", max_age=_VISITED_SECONDS, httponly=True, samesite="lax")
        await answer(scope, receive, send)

    return opening


def _is_first_visit(scope: Any, headers: Headers) -> bool:
    """Return whether a browser opens the page that has logged in, and has not been there; the script adds a query."""
    opens = "text/html" in headers.get("accept", "") and "authorization" in headers
    return opens and not scope["query_string"] and f"{_cookie(headers)}=1" not in headers.get("cookie", "")


def _cookie(headers: Headers) -> str:
    """Return the name of the cookie for one address: browsers send cookies to all ports of a host."""
    return f"mlplatform-visited-{re.sub('[^0-9]', '', headers.get('host', '').rpartition(':')[2])}"
