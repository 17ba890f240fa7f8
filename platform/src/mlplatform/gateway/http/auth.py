"""Token authentication compatible with Ray's own, and Ray's guard against cross-site requests (CSRF).

Order of the checks, texts and open paths are those of `ray/_private/authentication/http_token_authentication.py`,
`ray/dashboard/http_server_head.py` and `ray/dashboard/optional_utils.py` in Ray 2.60.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Collection
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mlplatform.gateway.http.browser import is_browser

COOKIE = "ray-authentication-token"

OPEN_PATHS = frozenset(
    {
        "/",
        "/favicon.ico",
        "/api/authentication_mode",
        "/api/authenticate",
        "/api/healthz",
        "/api/gcs_healthz",
        "/api/local_raylet_healthz",
        "/-/healthz",
        "/platform/health",
    }
)
"""Paths accepted without a token: the pages on which a browser prompts for the token, and health checks."""

OPEN_FOLDERS = ("/static/",)

_BROWSERS_MAY = ("GET", "HEAD", "OPTIONS")

# Two servers may read these differently: no slash at the start, an empty, `.` or `..` part, control characters.
_AMBIGUOUS = re.compile(r"^(?!/)|//|/\.{1,2}(/|$)|[\x00-\x1f\x7f\ufffd]")


class TokenAuth:
    """ASGI middleware that accepts requests with the token, and any request for the open paths.

    Responds 400 to an ambiguous path, 401 without a token, 403 with a wrong token, and 405 to a browser's request that
    changes something (Ray's CSRF guard). The handshake of a WebSocket is checked in the same way.

    Args:
        token: returns the current token.
        open_paths: exact decoded paths that need no token.
        open_folders: prefixes of such paths, each with its trailing slash.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: Callable[[], str],
        open_paths: Collection[str] = OPEN_PATHS,
        open_folders: tuple[str, ...] = OPEN_FOLDERS,
    ) -> None:
        self._app = app
        self._token = token
        self._open_paths = open_paths
        self._open_folders = open_folders

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and (refusal := self._refusal(scope)):
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        path, headers = scope["path"], Headers(scope=scope)
        if _ambiguous(scope):
            return PlainTextResponse(f"The path {path!r} is ambiguous; send it without empty, '.' and '..' parts.", 400)
        if path not in self._open_paths and not path.startswith(self._open_folders):
            given = _credential(headers)
            if not given:
                return PlainTextResponse("Unauthorized: Missing authentication token", 401)
            if not hmac.compare_digest(given.encode("latin-1", "replace"), f"Bearer {self._token()}".encode()):
                return PlainTextResponse("Forbidden: Invalid authentication token", 403)
        method = scope.get("method", "GET")  # a WebSocket has none and begins as a GET
        if method not in _BROWSERS_MAY and path != "/api/authenticate" and is_browser(headers):
            return PlainTextResponse(f"'{method}' method not allowed for browser traffic.", 405)
        return None


def _ambiguous(scope: Scope) -> bool:
    """Return whether another server may read the path as a different one: as sent, or after decoding it again."""
    path, sent = scope["path"], scope["raw_path"].decode("latin-1")
    readings = (path, unquote(path), sent)
    return "#" in sent or any(_AMBIGUOUS.search(reading.replace("\\", "/")) for reading in readings)


def _credential(headers: Headers) -> str:
    """Return `Bearer <token>` from where Ray looks for it: a client's header, a proxy's, the dashboard's cookie."""
    given = headers.get("authorization") or headers.get("x-ray-authorization") or ""
    if given:
        return given
    token = cookie_parser("; ".join(headers.getlist("cookie"))).get(COOKIE)
    return f"Bearer {token}" if token else ""
