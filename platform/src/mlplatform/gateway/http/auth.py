"""The door: the token of Ray's clients, asked for as Ray's head asks for it, and what browsers may not do.

Order, texts and open paths are those of `ray/_private/authentication/http_token_authentication.py`,
`ray/dashboard/http_server_head.py` and `ray/dashboard/optional_utils.py` in Ray 2.60.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mlplatform.errors import SettingsError
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
"""Open to everybody: what a browser needs to ask for the token, and health checks."""

OPEN_FOLDERS = ("/static/",)

_BROWSERS_MAY = ("GET", "HEAD", "OPTIONS")

# What two servers may read differently: no slash at the start, an empty, `.` or `..` part, control characters.
_AMBIGUOUS = re.compile(r"^(?!/)|//|/\.{1,2}(/|$)|[\x00-\x1f\x7f\ufffd]")


class TokenAuth:
    """ASGI middleware: lets in who has the token, and anybody to the open paths.

    A request is answered 400 when its path is ambiguous, 401 without a token, 403 with a wrong one, and 405 when a
    browser wants to change something (Ray's guard against forged requests). A websocket's handshake likewise.

    Args:
        open_paths: exact decoded paths that need no token.
        open_folders: beginnings of such paths, each with its slash at the end.

    Raises:
        SettingsError: the token is empty.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        open_paths: Collection[str] = OPEN_PATHS,
        open_folders: tuple[str, ...] = OPEN_FOLDERS,
    ) -> None:
        if not token:
            raise SettingsError("Ray's token is empty; write one into the file that RAY_AUTH_TOKEN_PATH names.")
        self._app = app
        self._expected = f"Bearer {token}".encode()
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
            return PlainTextResponse(
                f"The path {path!r} can be read in two ways; send it without empty, '.' and '..' parts.", 400
            )
        if path not in self._open_paths and not path.startswith(self._open_folders):
            given = _credential(headers)
            if not given:
                return PlainTextResponse("Unauthorized: Missing authentication token", 401)
            if not hmac.compare_digest(given.encode("latin-1", "replace"), self._expected):
                return PlainTextResponse("Forbidden: Invalid authentication token", 403)
        method = scope.get("method", "GET")  # a websocket has none and begins as a GET
        if method not in _BROWSERS_MAY and path != "/api/authenticate" and is_browser(headers):
            return PlainTextResponse(f"'{method}' method not allowed for browser traffic.", 405)
        return None


def _ambiguous(scope: Scope) -> bool:
    """Whether another server may take the path for another one: as it was sent, or after decoding it once more."""
    path, sent = scope["path"], scope["raw_path"].decode("latin-1")
    readings = (path, unquote(path), sent)
    return "#" in sent or any(_AMBIGUOUS.search(reading.replace("\\", "/")) for reading in readings)


def _credential(headers: Headers) -> str:
    """`Bearer <token>` as Ray looks for it: from clients, through proxies, from the dashboard."""
    given = headers.get("authorization") or headers.get("x-ray-authorization") or ""
    if given:
        return given
    token = cookie_parser("; ".join(headers.getlist("cookie"))).get(COOKIE)
    return f"Bearer {token}" if token else ""
