"""Token authentication compatible with Ray's own, sessions of browsers, and the guard against cross-site requests.

A request has the shared token, a person's token, a session that either has opened, an attempt's token, or a service's.
What comes after the authentication sees the `Principal`; `access` checks its right to the route. The cluster's token,
which all jobs have, opens nothing.

Order of the checks, texts and open paths are those of `ray/_private/authentication/http_token_authentication.py`,
`ray/dashboard/http_server_head.py` and `ray/dashboard/optional_utils.py` in Ray 2.60.
"""

from __future__ import annotations

import hmac
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mlplatform.errors import UnreachableError
from mlplatform.text.throttle import ThrottledWarning
from mlplatform_gateway.audit.store import SHARED_TOKEN, UNKNOWN, Actor, AuditLog
from mlplatform_gateway.errors import RequestError, TokenError
from mlplatform_gateway.http.clients import foreign_origin, is_browser
from mlplatform_gateway.http.errors import error_response
from mlplatform_gateway.http.revocation import CHECK_SECONDS, until_refused
from mlplatform_gateway.jobs.attempt_tokens import AttemptTokens
from mlplatform_gateway.people.rights import NOBODY, SHARED, Principal
from mlplatform_gateway.people.sessions import Sessions
from mlplatform_gateway.people.tokens import PREFIX, Tokens

COOKIE = "ray-authentication-token"
"""Cookie of the session; its name is Ray's, whose dashboard only checks that there is one."""

KEY = "X-MLPlatform-Key"
"""Header with the key of a session (`Sessions.key`), which the buttons of the front page send besides the cookie."""

LOGIN = "/api/authenticate"

TOKENS = "/platform/tokens"
"""Path at which a log-in code is exchanged for a token."""

PROMETHEUS, GRAFANA = "/platform/prometheus/api/v1/query", "/platform/grafana/api/health"

FRONT_PAGE, LOGIN_PAGE, LOGOUT, STATIC = "/platform/", "/platform/login", "/platform/logout", "/platform/static"

WHEELS = "/platform/wheel/"

OPEN_PATHS = frozenset(
    {
        *("/", "/favicon.ico", "/api/authentication_mode", LOGIN, LOGIN_PAGE, LOGOUT),
        *("/api/healthz", "/api/gcs_healthz", "/api/local_raylet_healthz", "/-/healthz", "/platform/health"),
        *(PROMETHEUS, GRAFANA),
    }
)
"""Paths accepted without a token: the pages on which a browser prompts for the token, log-out, health checks, also of
Grafana, and those queries to Prometheus that Ray's dashboard makes."""

OPEN_FOLDERS = ("/static/", f"{STATIC}/", WHEELS)
_BROWSERS_MAY = ("GET", "HEAD", "OPTIONS")

BROWSERS_POST = (LOGIN, LOGIN_PAGE, LOGOUT)
"""Paths to which a browser may post: log-in and log-out, which change only its own session."""

RECORDED_FAILURES, _RECORDED_SECONDS = 100, 3600.0
"""Failed log-ins that are recorded per hour, whatever their addresses: anyone who reaches the port can cause them."""

_BY_KEY = re.compile(
    r"POST /api/jobs/([^/]+/stop)?|DELETE /api/jobs/[^/]+|POST /platform/jobs/[^/]+/(resume|lab)", re.ASCII
)
"""Requests that a session sends with its key: for jobs of one's own (`access.require`), new ones included."""

_KIND, _PRINCIPAL = "mlplatform.kind", "mlplatform.principal"
"""Keys of a request's scope: the kind of its credential, if that is not a token, and the principal."""

INVALID = "Forbidden: Invalid authentication token"
"""The response to a wrong token, which is also the beginning of that to a person's wrong token."""

_WRONG_KEY = "Unauthorized: The key of this page's buttons has ended; log in again."

OF_CLUSTER = (
    "Unauthorized: The token of Ray's nodes opens nothing here; send your own or, in a job, the attempt's "
    "(RAY_JOB_HEADERS)."
)

_warn = ThrottledWarning(logging.getLogger(__name__))

# Two servers may read these differently: no slash at the start, an empty, `.` or `..` part, control characters.
_AMBIGUOUS = re.compile(r"^(?!/)|//|/\.{1,2}(/|$)|[\x00-\x1f\x7f\ufffd]")


class TokenCheck:
    """Check of a token as Ray's head does it.

    Args:
        token: returns the current shared token.
        audit: where failed log-ins are recorded; None to record none.
        tokens: tokens of people; None to accept none.
        services: by the name of each service that has a token of its own, what returns it.
        attempts: tokens of attempts; None to accept none.
        cluster: returns the token of Ray's nodes, which is refused on every path; None if there is none.
    """

    def __init__(
        self,
        token: Callable[[], str],
        audit: AuditLog | None = None,
        tokens: Tokens | None = None,
        services: Mapping[str, Callable[[], str]] | None = None,
        attempts: AttemptTokens | None = None,
        cluster: Callable[[], str] | None = None,
    ) -> None:
        self._token = token
        self.tokens = tokens
        self._services = services or {}
        self._attempts = attempts
        self._cluster = cluster
        self._audit = audit
        self._recorded: deque[float] = deque(maxlen=RECORDED_FAILURES)

    async def authenticate(self, given: str, scope: Scope) -> Principal | PlainTextResponse:
        """Return the owner of a credential `Bearer <token>`; else 401 for none or the cluster's, 403 for a wrong one.

        Raises:
            UnreachableError: it may be a person's token, and the database is unavailable.
        """
        if not given:
            return PlainTextResponse("Unauthorized: Missing authentication token", 401)
        if refused := self.refused_everywhere(given):
            return refused
        try:
            return await self.owner(given)
        except TokenError as error:
            return await self.fail(str(error), scope, "token", error.person or UNKNOWN)

    async def owner(self, given: str) -> Principal:
        """Return the owner of a credential.

        Raises:
            TokenError: it is wrong, or has ended.
            UnreachableError: as `authenticate`.
        """
        if _equal(given, self._token()):
            return SHARED
        for service, token in self._services.items():
            if _equal(given, token()):
                return Principal(service=service)
        if self.tokens is None or not given.startswith(f"Bearer {PREFIX}"):
            raise TokenError(INVALID)
        try:
            return await self.tokens.check(given.removeprefix("Bearer "))
        except TokenError as error:
            if self._attempts is None or error.person:
                raise
        return await self._attempts.check(given.removeprefix("Bearer "))

    def refused_everywhere(self, given: str) -> PlainTextResponse | None:
        """Return the refusal of the cluster's token; None for any other credential."""
        refused = self._cluster is not None and _equal(given, self._cluster())
        return PlainTextResponse(OF_CLUSTER, 401) if refused else None

    async def fail(
        self, text: str, scope: Scope, kind: str, principal: str = UNKNOWN, status: int = 403
    ) -> PlainTextResponse:
        """Record a failed log-in; return its refusal."""
        actor = Actor(principal, kind, client_address(scope))
        await self._record(actor, f"{scope.get('method', 'GET')} {scope['path']}")
        return PlainTextResponse(text, status)

    async def _record(self, actor: Actor, target: str) -> None:
        full = len(self._recorded) == RECORDED_FAILURES and time.monotonic() - self._recorded[0] < _RECORDED_SECONDS
        if self._audit is None or full:
            return
        self._recorded.append(time.monotonic())
        try:
            await self._audit.add(actor, "failed log-in", target)
        except UnreachableError as error:
            _warn("A failed log-in from %s is not recorded: %s", actor.address, error)


class TokenAuth:
    """ASGI middleware that accepts requests with the token or an open session, and reads of the open paths.

    Responds 400 to an ambiguous path, 401 without a token or with the cluster's, 403 with a wrong token or an ended
    session, 403 to a browser's request from another origin's page, and 405 to a request of a browser (Ray's CSRF guard)
    or with a session that changes something. The handshake of a WebSocket is checked in the same way. What comes after
    sees the `Principal`. A browser that opens a page of ours is sent to the login page. Requests that last end with
    their token or session.

    Args:
        sessions: sessions of browsers; None to accept none.
        open_paths: exact decoded paths that need no token.
        open_folders: prefixes of such paths, each with its trailing slash.
        check_seconds: interval at which the token of a request that lasts is checked again.
    """

    def __init__(
        self,
        app: ASGIApp,
        check: TokenCheck,
        sessions: Sessions | None = None,
        open_paths: Collection[str] = OPEN_PATHS,
        open_folders: tuple[str, ...] = OPEN_FOLDERS,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        self._app = app
        self._check = check
        self._sessions = sessions
        self._open_paths = open_paths
        self._open_folders = open_folders
        self._check_seconds = check_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        refusal = _malformed(scope) or _foreign(scope) or self._check.refused_everywhere(_given(scope))
        if refusal is None and not self._is_open(scope):
            refusal, scope = await self._authenticated(scope)
            if refusal and refusal.status_code in (401, 403) and _shows_pages(scope):
                refusal = RedirectResponse(LOGIN_PAGE, 303)
        refusal = refusal or await self._cross_site(scope)
        app = refusal or self._app
        if refusal is None and principal_of(scope) != NOBODY and not principal_of(scope).service:
            app = until_refused(app, lambda: self._again(scope), self._check_seconds)
        await app(scope, receive, send)

    async def _again(self, scope: Scope) -> None:
        """Check the credential of a request that lasts again; raise TokenError if it has ended."""
        principal = principal_of(scope)
        if await owner_of(scope, self._check, self._sessions) != principal:
            raise TokenError(f"The rights of {principal.person} have changed; send the request again.")

    def _is_open(self, scope: Scope) -> bool:
        """Return whether a request needs no token: a read of an open path without a body, log-in and log-out."""
        path = scope["path"]
        if scope["type"] != "http":
            return False
        if scope["method"] == "POST" and path == TOKENS:
            return self._check.tokens is not None  # a log-in by a code, which is checked there
        if not (path in self._open_paths or path.startswith(self._open_folders)):
            return False
        return _only_reads(scope) or (scope["method"] == "POST" and path in BROWSERS_POST)

    async def _authenticated(self, scope: Scope) -> tuple[Response | None, Scope]:
        """Return the refusal of a request, if any, and the request as its principal's."""
        given, session_id = _given(scope), _session_in(Headers(scope=scope))
        try:
            if not given and session_id and self._sessions is not None:
                holder = await self._sessions.holder(session_id)
                if holder is None:
                    return await self._check.fail(INVALID, scope, "session"), scope
                return None, identified({**scope, _KIND: "session"}, holder)
            found = await self._check.authenticate(given, scope)
        except UnreachableError as error:
            return error_response(error), scope
        if isinstance(found, Response):
            return found, scope
        return None, identified(scope, found)

    async def _cross_site(self, scope: Scope) -> Response | None:
        """Return the refusal of a request that changes something, and is a browser's or has a session for a credential.

        Without its key, a session only reads, whatever the headers: every server on the browser's host gets its cookie,
        on any port.
        """
        method = scope.get("method", "GET")  # a WebSocket has none and begins as a GET
        if scope["path"] in BROWSERS_POST:
            return None
        if changes_by_session(scope) and _BY_KEY.fullmatch(f"{method} {scope['path']}"):
            given = Headers(scope=scope).get(KEY)
            if given is not None and self._sessions is not None:
                key = self._sessions.key(_session_in(Headers(scope=scope)) or "")
                right = hmac.compare_digest(given.encode("latin-1", "replace"), key.encode())
                whose = actor_of(scope).principal
                return None if right else await self._check.fail(_WRONG_KEY, scope, "session", whose, 401)
        if method not in _BROWSERS_MAY and is_browser(Headers(scope=scope)):
            return PlainTextResponse(f"'{method}' method not allowed for browser traffic.", 405)
        if changes_by_session(scope):
            return PlainTextResponse(f"'{method}' method not allowed for sessions; send the token itself.", 405)
        return None


async def owner_of(scope: Scope, check: TokenCheck, sessions: Sessions | None) -> Principal:
    """Return who has the credential of a request that was authenticated before; raise TokenError if it has ended."""
    if sessions is None or scope.get(_KIND) != "session":
        return await check.owner(_given(scope))
    found = await sessions.holder(_session_in(Headers(scope=scope)) or "")
    if found is None:
        raise TokenError(f"This session of {principal_of(scope).person or SHARED_TOKEN} has ended; log in again.")
    return found


def credential_in(scope: Scope) -> Scope:
    """Return of a request what `owner_of` reads."""
    names = (b"authorization", b"x-ray-authorization", b"cookie")
    kept = [(name, value) for name, value in scope["headers"] if name in names]
    return {**{key: scope[key] for key in (_KIND, _PRINCIPAL) if key in scope}, "type": "http", "headers": kept}


def _malformed(scope: Scope) -> Response | None:
    """Return the refusal of a path that another server may read as a different one: as sent, or decoded again."""
    path, sent = scope["path"], scope["raw_path"].decode("latin-1")
    readings = (path, unquote(path), sent)
    if "#" not in sent and not any(_AMBIGUOUS.search(reading.replace("\\", "/")) for reading in readings):
        return None
    return PlainTextResponse(f"The path {path!r} is ambiguous; send it without empty, '.' and '..' parts.", 400)


def _foreign(scope: Scope) -> Response | None:
    """Return the refusal of a page of another origin that opens a WebSocket, logs in or out, or sends a cookie."""
    origin = foreign_origin(scope["headers"])
    if origin is None or scope.get("method", "") in _BROWSERS_MAY:
        return None
    if scope["type"] == "websocket" or scope["path"] in BROWSERS_POST or "cookie" in Headers(scope=scope):
        return PlainTextResponse(f"Pages of {origin!r} may not use the gateway; open its own address.", 403)
    return None


def _only_reads(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    return scope["method"] in ("GET", "HEAD") and not has_body


def client_address(scope: Scope) -> str:
    """Return the address of the client's end of the connection."""
    return str(scope["client"][0]) if scope.get("client") else ""


def changes_by_session(scope: Scope) -> bool:
    """Return whether a request has a session for a credential, and does not only read."""
    return scope.get(_KIND) == "session" and scope.get("method", "GET") not in ("GET", "HEAD")


def identified(scope: Scope, principal: Principal) -> Scope:
    """Return a request as that of a principal."""
    return {**scope, _PRINCIPAL: principal}


def principal_of(scope: Scope) -> Principal:
    """Return the principal of a request; one without rights if the request needed no credential."""
    found: Principal = scope.get(_PRINCIPAL, NOBODY)
    return found


def person_of(scope: Scope, what: str) -> str:
    """Return the name of the person who sends a request; raise RequestError for the shared token, which is nobody's."""
    person = principal_of(scope).person
    if not person:
        raise RequestError(f"{what} are for people: log in with a token of your own, `mlplatform login`.")
    return person


def actor_of(scope: Scope, principal: Principal | None = None) -> Actor:
    """Return the sender of a request that was authenticated, or of a log-in by `principal`, for the audit log."""
    by = principal or principal_of(scope)
    kind = f"job {by.attempt.job}" if by.attempt else scope.get(_KIND, "token")
    return Actor(by.person or by.service or SHARED_TOKEN, kind, client_address(scope))


def _shows_pages(scope: Scope) -> bool:
    """Return whether a person opens a page of ours in a browser, to whom a form says more than a status."""
    opens = scope["type"] == "http" and scope["method"] == "GET"
    return opens and scope["path"].startswith(FRONT_PAGE) and "text/html" in Headers(scope=scope).get("accept", "")


def _given(scope: Scope) -> str:
    """Return the credential that decides, as on Ray's head: a client's header, else a proxy's."""
    headers = Headers(scope=scope)
    return headers.get("authorization") or headers.get("x-ray-authorization") or ""


def _session_in(headers: Headers) -> str | None:
    return cookie_parser("; ".join(headers.getlist("cookie"))).get(COOKIE)


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("latin-1", "replace"), f"Bearer {token}".encode())
