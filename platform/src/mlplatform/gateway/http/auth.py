"""Token authentication compatible with Ray's own, sessions of browsers, and the guard against cross-site requests.

Order of the checks, texts and open paths are those of `ray/_private/authentication/http_token_authentication.py`,
`ray/dashboard/http_server_head.py` and `ray/dashboard/optional_utils.py` in Ray 2.60.
"""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Callable, Collection
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mlplatform.errors import UnreachableError
from mlplatform.gateway.audit.log import SHARED_TOKEN, UNKNOWN, Actor, AuditLog
from mlplatform.gateway.http.browser import is_browser
from mlplatform.gateway.http.errors import error_response
from mlplatform.gateway.people.sessions import Sessions
from mlplatform.throttle import LoginThrottle, ThrottledWarning, throttled_text

COOKIE = "ray-authentication-token"
"""Cookie of the session; its name is Ray's, whose dashboard only checks that there is one."""

LOGIN = "/api/authenticate"

PROMETHEUS, GRAFANA = "/platform/prometheus/api/v1/query", "/platform/grafana/api/health"

FRONT_PAGE, LOGIN_PAGE, LOGOUT, STATIC = "/platform/", "/platform/login", "/platform/logout", "/platform/static"

OPEN_PATHS = frozenset(
    {
        "/",
        "/favicon.ico",
        "/api/authentication_mode",
        LOGIN,
        "/api/healthz",
        "/api/gcs_healthz",
        "/api/local_raylet_healthz",
        "/-/healthz",
        "/platform/health",
        LOGIN_PAGE,
        LOGOUT,
        PROMETHEUS,
        GRAFANA,
    }
)
"""Paths accepted without a token: the pages on which a browser prompts for the token, log-out, health checks, also of
Grafana, and those queries to Prometheus that Ray's dashboard makes."""

OPEN_FOLDERS = ("/static/", f"{STATIC}/")

_BROWSERS_MAY = ("GET", "HEAD", "OPTIONS")

BROWSERS_POST = (LOGIN, LOGIN_PAGE, LOGOUT)
"""Paths to which a browser may post: log-in and log-out, which change only its own session."""

RECORDED_FAILURES, _RECORDED_SECONDS = 100, 3600.0
"""Failed log-ins that are recorded per hour, whatever their addresses: anyone who reaches the port can cause them."""

_KIND = "mlplatform.kind"
"""Key of a request's scope: the credential that it came with, if that is not the token."""

_warn = ThrottledWarning(logging.getLogger(__name__))

# Two servers may read these differently: no slash at the start, an empty, `.` or `..` part, control characters.
_AMBIGUOUS = re.compile(r"^(?!/)|//|/\.{1,2}(/|$)|[\x00-\x1f\x7f\ufffd]")


class TokenCheck:
    """Check of a token as Ray's head does it, and a limit of failed log-ins per address.

    Args:
        token: returns the current token.
        audit: where failed log-ins are recorded, those that get 429 excepted; None to record none.
    """

    def __init__(self, token: Callable[[], str], audit: AuditLog | None = None) -> None:
        self.token = token
        self._audit = audit
        self._throttle = LoginThrottle()
        self._recorded = LoginThrottle(RECORDED_FAILURES, _RECORDED_SECONDS)

    async def refusal(self, given: str, scope: Scope, kind: str = "token") -> PlainTextResponse | None:
        """Return 401 for an empty credential, 403 for a wrong one or 429 for too many; None for `Bearer <token>`.

        Args:
            given: the credential.
            scope: the request; only wrong credentials of its client's address are throttled, never the token.
            kind: of the credential, for the audit log.
        """
        if not given:
            return PlainTextResponse("Unauthorized: Missing authentication token", 401)
        if hmac.compare_digest(given.encode("latin-1", "replace"), f"Bearer {self.token()}".encode()):
            return None
        if seconds := self._throttle.fail(client_address(scope)):
            return PlainTextResponse(throttled_text(seconds), 429, {"Retry-After": str(seconds)})
        await self._record(Actor(UNKNOWN, kind, client_address(scope)), f"{scope.get('method', 'GET')} {scope['path']}")
        return PlainTextResponse("Forbidden: Invalid authentication token", 403)

    async def _record(self, actor: Actor, target: str) -> None:
        if self._audit is None or self._recorded.fail(""):
            return
        try:
            await self._audit.add(actor, "failed log-in", target)
        except UnreachableError as error:
            _warn("A failed log-in from %s is not recorded: %s", actor.address, error)


class TokenAuth:
    """ASGI middleware that accepts requests with the token or an open session, and reads of the open paths.

    Responds 400 to an ambiguous path, 401 without a token, 403 with a wrong token or an ended session, 429 after ten
    of these per minute and address, 403 to a browser's request from another origin's page, and 405 to a browser's
    request that changes something (Ray's CSRF guard). The handshake of a WebSocket is checked in the same way. What
    comes after sees the token instead of the session. A browser that opens a page of ours is sent to the login page.

    Args:
        check: check of the token.
        sessions: sessions of browsers; None to accept none.
        open_paths: exact decoded paths that need no token.
        open_folders: prefixes of such paths, each with its trailing slash.
    """

    def __init__(
        self,
        app: ASGIApp,
        check: TokenCheck,
        sessions: Sessions | None = None,
        open_paths: Collection[str] = OPEN_PATHS,
        open_folders: tuple[str, ...] = OPEN_FOLDERS,
    ) -> None:
        self._app = app
        self._check = check
        self._sessions = sessions
        self._open_paths = open_paths
        self._open_folders = open_folders

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        refusal = _malformed(scope) or _foreign(scope)
        if refusal is None and not self._is_open(scope):
            refusal, scope = await self._authenticated(scope)
            if refusal and _shows_pages(scope):
                refusal = RedirectResponse(LOGIN_PAGE, 303)
        refusal = refusal or _cross_site(scope)
        await (refusal or self._app)(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        """Return whether a request needs no token: a read of an open path without a body, log-in and log-out."""
        path = scope["path"]
        if scope["type"] != "http" or not (path in self._open_paths or path.startswith(self._open_folders)):
            return False
        return _only_reads(scope) or (scope["method"] == "POST" and path in BROWSERS_POST)

    async def _authenticated(self, scope: Scope) -> tuple[Response | None, Scope]:
        """Return the refusal of a request, if any, and the request with the token in place of a session."""
        headers = Headers(scope=scope)
        session_id = _session_in(headers)
        # The first credential decides, as on Ray's head: a client's header, a proxy's, the dashboard's cookie.
        given = headers.get("authorization") or headers.get("x-ray-authorization") or ""
        if given or not session_id or self._sessions is None:
            return await self._check.refusal(given, scope), scope
        try:
            if await self._sessions.is_open(session_id):
                return None, _with_token(scope, self._check.token())
        except UnreachableError as error:
            return error_response(error), scope
        return await self._check.refusal("an ended session", scope, "session"), scope


def _ambiguous(scope: Scope) -> bool:
    """Return whether another server may read the path as a different one: as sent, or after decoding it again."""
    path, sent = scope["path"], scope["raw_path"].decode("latin-1")
    readings = (path, unquote(path), sent)
    return "#" in sent or any(_AMBIGUOUS.search(reading.replace("\\", "/")) for reading in readings)


def _malformed(scope: Scope) -> Response | None:
    if not _ambiguous(scope):
        return None
    path = scope["path"]
    return PlainTextResponse(f"The path {path!r} is ambiguous; send it without empty, '.' and '..' parts.", 400)


def _cross_site(scope: Scope) -> Response | None:
    """Return the refusal of a browser's request that changes something."""
    method = scope.get("method", "GET")  # a WebSocket has none and begins as a GET
    if method in _BROWSERS_MAY or scope["path"] in BROWSERS_POST or not is_browser(Headers(scope=scope)):
        return None
    return PlainTextResponse(f"'{method}' method not allowed for browser traffic.", 405)


def _foreign(scope: Scope) -> Response | None:
    """Return the refusal of a page of another origin that opens a WebSocket, or changes something with a cookie."""
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    if origin is None or _same_host(origin, headers.get("host", "")):
        return None
    if scope["type"] == "websocket" or (scope["method"] not in _BROWSERS_MAY and "cookie" in headers):
        return PlainTextResponse(f"Pages of {origin[:200]!r} may not use the gateway; open its own address.", 403)
    return None


def _same_host(origin: str, host: str) -> bool:
    """Return whether an origin is the address to which a request was sent; a TLS proxy may have changed the scheme."""
    scheme, _, origin_host = origin.lower().partition("://")
    port = {"http": ":80", "https": ":443"}.get(scheme)
    return port is not None and origin_host.removesuffix(port) == host.lower().removesuffix(port)


def _only_reads(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    return scope["method"] in ("GET", "HEAD") and not has_body


def client_address(scope: Scope) -> str:
    """Return the address of the client's end of the connection."""
    return str(scope["client"][0]) if scope.get("client") else ""


def actor_of(scope: Scope) -> Actor:
    """Return the one who sends a request that was authenticated, for the audit log."""
    return Actor(SHARED_TOKEN, scope.get(_KIND, "token"), client_address(scope))


def _shows_pages(scope: Scope) -> bool:
    """Return whether a person opens a page of ours in a browser, to whom a form says more than a status."""
    opens = scope["type"] == "http" and scope["method"] == "GET"
    return opens and scope["path"].startswith(FRONT_PAGE) and "text/html" in Headers(scope=scope).get("accept", "")


def _session_in(headers: Headers) -> str | None:
    return cookie_parser("; ".join(headers.getlist("cookie"))).get(COOKIE)


def _with_token(scope: Scope, token: str) -> Scope:
    """Return the request with the token in place of the session, which Ray's head does not know."""
    headers = [*Headers(scope=scope).raw, (b"authorization", f"Bearer {token}".encode())]
    return {**scope, "headers": headers, _KIND: "session"}
