"""Guards around the MLflow server: foreign origins, its assistant, security headers, and failed log-ins.

ASGI applications around MLflow's, because MLflow serves some of its routes by Flask and others past it.
"""

from __future__ import annotations

import base64
import hmac
import re
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from mlplatform.origins import foreign_origin
from mlplatform.throttle import LoginThrottle, throttled_text

_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"SAMEORIGIN",
    b"referrer-policy": b"same-origin",
    b"content-security-policy": b"frame-ancestors 'self'; object-src 'none'; base-uri 'self'",
}

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


class GuardedPages:
    """An ASGI application around MLflow's.

    Each process of the server counts for itself. Correct credentials are never rejected, as containers share
    addresses: the count decides only what a failed log-in is answered.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._throttle = LoginThrottle()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = (scope.get("client") or ("",))[0]
        logs_in = any(name == b"authorization" for name, _ in scope["headers"])
        seconds = 0

        async def answer(message: Any) -> None:
            nonlocal seconds
            if message["type"] == "http.response.start":
                if message["status"] == 401 and logs_in and (seconds := self._throttle.fail(client)):
                    headers = [(b"content-type", b"text/plain"), (b"retry-after", str(seconds).encode())]
                    message = {**message, "status": 429, "headers": headers}
                there = {name.lower() for name, _ in message["headers"]}
                added = [(name, value) for name, value in _HEADERS.items() if name not in there]
                message = {**message, "headers": [*message["headers"], *added]}
            elif seconds:
                body = b"" if message.get("more_body") else throttled_text(seconds).encode()
                message = {**message, "body": body}
            await send(message)

        await self._app(scope, receive, answer)
