"""Pages of JupyterLab, each visit under a host name of its own: `<random>.lab.localhost`, or `<random>.lab.DOMAIN`.

They are code of jobs. With the name, they have an origin of their own, so that their scripts neither read nor change
anything at the gateway, in the pages beside it and in other jobs, and no other server gets their cookie. Who shows a
token at the gateway gets the name of a visit to a job, with a ticket for its cookie.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from mlplatform.errors import PlatformError
from mlplatform_gateway.dev.lab import Lab, Labs
from mlplatform_gateway.dev.shell import until_one_ends
from mlplatform_gateway.errors import ForbiddenError, NoShellError, RequestError
from mlplatform_gateway.http.access import require
from mlplatform_gateway.http.auth import identified
from mlplatform_gateway.http.clients import foreign_origin
from mlplatform_gateway.http.errors import error_response
from mlplatform_gateway.http.revocation import CHECK_SECONDS, until_refused
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.people.rights import Principal, Verb
from mlplatform_gateway.people.sessions import LIFETIME
from mlplatform_gateway.people.store import People
from mlplatform_gateway.ray.proxy import target

NOTICE = "/mlplatform/notice"
"""Path that our extension of JupyterLab (`images/ray/notice`) reads."""

_HOST = re.compile(r"([0-9a-f]{16})\.lab\..+")

_COOKIE = "mlplatform-lab"

_TICKET_SECONDS = 60.0

_MOST = 1000
"""Visits that are kept; the oldest ends first."""

_MESSAGE_BYTES = 16 << 20
"""Largest message of a kernel; uvicorn has the same limit for those of browsers."""

_FRESH = {"Cache-Control": "no-store"}


def name_beside(request: HTTPConnection) -> str:
    """Return the name below which pages are for whoever sends a request, with its port.

    Raises:
        RequestError: the gateway was reached by an address, which has no names below it.
    """
    host = request.url.hostname or ""
    if host in ("localhost", "127.0.0.1", "ray.localhost"):
        name = "lab.localhost"
    elif request.url.scheme == "https" and not _is_address(host):
        name = f"lab.{host.removeprefix('ray.')}"
    else:
        reason = f"JupyterLab's pages need names of their own, and {host} has none below it"
        raise RequestError(f"{reason}: reach the gateway as localhost, by a forwarded port, or by TLS under DOMAIN.")
    return f"{name}:{request.url.port}" if request.url.port else name


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(host.strip("[]")))
    return False


@dataclass
class _Visit:
    """Somebody's right to the pages of a job.

    Attributes:
        credential: with which it was asked for.
        ticket: shown once, for the cookie; empty afterwards.
        since: time of the request on the monotonic clock, in seconds.
    """

    job_id: str
    credential: Scope
    ticket: str
    cookie: str
    since: float


class Visits:
    """Visits in memory: after a restart of the gateway, people open the pages again."""

    def __init__(self) -> None:
        self._visits: dict[str, _Visit] = {}

    def begin(self, job_id: str, credential: Scope, name: str) -> str:
        """Return host and path of a new visit, with the ticket.

        Args:
            credential: of whoever asks for it.
            name: name below which it is, with its port.
        """
        self._forget()
        label, ticket, cookie = secrets.token_hex(8), secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._visits[label] = _Visit(job_id, credential, ticket, cookie, time.monotonic())
        return f"{label}.{name}/?ticket={ticket}"

    def enter(self, label: str, ticket: str) -> str | None:
        """Return the cookie for a ticket; None if it is not, or no longer, valid."""
        visit = self._visits.get(label)
        expired = visit is None or time.monotonic() - visit.since > _TICKET_SECONDS
        if visit is None or expired or not visit.ticket or not secrets.compare_digest(visit.ticket, ticket):
            return None
        visit.ticket = ""
        return visit.cookie

    def find(self, label: str, cookie: str) -> _Visit | None:
        """Return the visit of a name and its cookie, if there is one."""
        self._forget()
        visit = self._visits.get(label)
        return visit if visit and secrets.compare_digest(visit.cookie.encode(), cookie.encode()) else None

    def _forget(self) -> None:
        for label, visit in list(self._visits.items()):  # the oldest first
            if len(self._visits) < _MOST and time.monotonic() - visit.since < LIFETIME.total_seconds():
                return
            del self._visits[label]


class LabPages:
    """ASGI middleware that answers requests to the names of visits, and passes on all others.

    Args:
        owner: returns who has a credential; raises TokenError if it has ended.
    """

    def __init__(
        self,
        app: ASGIApp,
        labs: Labs,
        visits: Visits,
        jobs: JobStore,
        people: People,
        owner: Callable[[Scope], Awaitable[Principal]],
    ) -> None:
        self._app = app
        self._labs = labs
        self._visits = visits
        self._jobs = jobs
        self._people = people
        self._owner = owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_request = scope["type"] in ("http", "websocket")
        if not is_request or not (name := _HOST.fullmatch(Headers(scope=scope).get("host", ""))):
            return await self._app(scope, receive, send)
        try:
            await self._show(HTTPConnection(scope), name[1], receive, send)
        except PlatformError as error:
            await error_response(error)(scope, receive, send)

    async def _show(self, request: HTTPConnection, label: str, receive: Receive, send: Send) -> None:
        scope = request.scope
        if (ticket := request.query_params.get("ticket")) and (cookie := self._visits.enter(label, ticket)):
            return await _welcome(cookie, request)(scope, receive, send)
        visit = self._visits.find(label, request.cookies.get(_COOKIE, ""))
        if visit is None:
            raise ForbiddenError("This visit has ended: open JupyterLab again, with `mlplatform dev open`.")
        if scope.get("method") not in ("GET", "HEAD") and (origin := foreign_origin(scope["headers"])):
            raise ForbiddenError(f"Pages of {origin!r} may not use JupyterLab.")
        principal, job = await self._admit(visit)
        if scope["path"] == NOTICE:
            return await _notice(job)(scope, receive, send)
        async with self._labs.of(job) as lab:
            app = lab.proxy if scope["type"] == "http" else _web_socket(lab)
            lasting = until_refused(app, lambda: self._admit(visit), CHECK_SECONDS)
            await lasting(identified(scope, principal), receive, send)

    async def _admit(self, visit: _Visit) -> tuple[Principal, JobRow]:
        """Return whose visit it is, and the job, which may be another person's of this id meanwhile.

        Raises:
            TokenError: the credential has ended.
            ForbiddenError: it gives no right to the job, or the team allows no shells.
        """
        principal, job = await self._owner(visit.credential), await self._jobs.get(visit.job_id)
        require(identified({}, principal), Verb.SHELL, job)
        await self._people.check_shells(job.team)
        return principal, job


def _welcome(cookie: str, request: HTTPConnection) -> Response:
    answer = RedirectResponse("/lab", 303, _FRESH)
    answer.set_cookie(_COOKIE, cookie, httponly=True, samesite="lax", secure=request.url.scheme == "https")
    return answer


def _notice(job: JobRow) -> Response:
    """Return until when a job stays and for whom; null as long as nobody needs its resources."""
    attempt = None if job.stop_requested else job.open_attempt
    until = attempt and attempt.leave_by
    said = {"until": until.isoformat(), "why": attempt.leave_why} if attempt and until else None
    return JSONResponse(said, headers=_FRESH)


def _web_socket(lab: Lab) -> ASGIApp:
    """Return an application that carries the messages of a WebSocket both ways until one side closes it."""

    async def carry(scope: Scope, receive: Receive, send: Send) -> None:
        here = WebSocket(scope, receive, send)
        address, token = f"ws://lab{target(scope).decode()}", {"Authorization": f"Bearer {lab.token}"}
        # SSH notices a dead connection; a slow browser is none.
        options: Any = {"max_size": _MESSAGE_BYTES, "max_queue": 2, "compression": None, "ping_interval": None}
        options["subprotocols"] = scope["subprotocols"] or None
        try:
            async with unix_connect(lab.path, address, additional_headers=token, **options) as there:
                await here.accept(there.subprotocol)
                await until_one_ends(_to(here, there), _from(here, there))
        except (OSError, ValueError, WebSocketException) as error:
            raise NoShellError(f"JupyterLab refuses the connection: {error}.") from error

    return carry


async def _to(here: WebSocket, there: ClientConnection) -> None:
    while (message := await here.receive())["type"] == "websocket.receive":
        text = message.get("text")
        await there.send(message["bytes"] if text is None else text)


async def _from(here: WebSocket, there: ClientConnection) -> None:
    try:
        while True:
            message = await there.recv()
            await (here.send_text(message) if isinstance(message, str) else here.send_bytes(message))
    except ConnectionClosed:
        await here.close(there.close_code or 1011, there.close_reason)
