"""Pages of JupyterLab, on a host name of their own: `lab.localhost`, or `lab.DOMAIN` with the TLS entrance.

They are code of jobs. With the name, they have an origin of their own, so that their scripts neither read the gateway
and the pages beside it nor change anything there; and jobs get no cookie of a browser. Who has logged in at the gateway
gets a ticket for a job there, and with it, at this name, a cookie for the pages of that job only.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, cookie_parser
from starlette.responses import RedirectResponse, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from mlplatform.errors import PlatformError
from mlplatform_gateway.dev.lab import Lab, Labs
from mlplatform_gateway.dev.shell import until_one_ends
from mlplatform_gateway.errors import ForbiddenError, NoShellError, RequestError
from mlplatform_gateway.http.access import require
from mlplatform_gateway.http.auth import identified, principal_of
from mlplatform_gateway.http.clients import foreign_origin
from mlplatform_gateway.http.errors import error_response
from mlplatform_gateway.http.revocation import CHECK_SECONDS, until_refused
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.people.rights import Verb
from mlplatform_gateway.people.sessions import LIFETIME
from mlplatform_gateway.people.store import People
from mlplatform_gateway.ray.proxy import target

_NAME = "lab."

_COOKIE = "mlplatform-lab"

_TICKET_SECONDS = 60.0

_READS = ("GET", "HEAD")

_NOTICE = "mlplatform/notice"
"""Path below a job's pages at which our extension of JupyterLab (`images/ray/notice`) listens."""

_UPDATE_SECONDS = 2.0

_FRESH = {"Cache-Control": "no-store"}


def address(request: HTTPConnection, job_id: str, ticket: str) -> str:
    """Return the address of a job's pages for the browser that sends a request.

    Raises:
        RequestError: the browser knows this host by an address, which has no names below it.
    """
    url = request.url
    host = url.hostname or ""
    if host in ("localhost", "127.0.0.1"):
        name = f"{_NAME}localhost"
    elif host.startswith("ray."):
        name = f"{_NAME}{host.removeprefix('ray.')}"
    else:
        reason = f"JupyterLab needs a host name of its own, and {host} has none below it"
        raise RequestError(f"{reason}: open the gateway as localhost, by a forwarded port, or as ray.DOMAIN.")
    return f"{url.replace(hostname=name, path=_base(job_id), query=f'ticket={ticket}')}"


def _base(job_id: str) -> str:
    """Return the path of a job's pages: its id, with dashes for what has a meaning in addresses."""
    return f"/{''.join(letter if letter.isalnum() and letter.isascii() else '-' for letter in job_id)}/"


@dataclass(frozen=True)
class _Visit:
    """Somebody's right to the pages of a job.

    Attributes:
        scope: the request that asked for them, whose credential has to stay valid.
        since: time of that on the monotonic clock, in seconds.
    """

    job_id: str
    scope: Scope
    since: float


class Visits:
    """Rights to pages, in memory: after a restart of the gateway, people open the pages again."""

    def __init__(self) -> None:
        self._tickets: dict[str, _Visit] = {}
        self._visits: dict[str, _Visit] = {}

    def ticket(self, job_id: str, scope: Scope) -> str:
        """Return a ticket for the pages of a job, which the sender of a request may see; it is used once, and soon."""
        self._forget()
        ticket = secrets.token_urlsafe(32)
        self._tickets[ticket] = _Visit(job_id, scope, time.monotonic())
        return ticket

    def enter(self, ticket: str) -> tuple[str, str] | None:
        """Return the cookie for a ticket, and the path for which it is; None if the ticket is no longer valid."""
        self._forget()
        visit = self._tickets.pop(ticket, None)
        if visit is None:
            return None
        cookie = secrets.token_urlsafe(32)
        self._visits[cookie] = visit
        return cookie, _base(visit.job_id)

    def find(self, cookie: str) -> _Visit | None:
        """Return the visit of a cookie, if there is one."""
        return self._visits.get(cookie)

    def _forget(self) -> None:
        for visits, seconds in ((self._tickets, _TICKET_SECONDS), (self._visits, LIFETIME.total_seconds())):
            for key in [key for key, visit in visits.items() if time.monotonic() - visit.since > seconds]:
                del visits[key]


class LabPages:
    """ASGI middleware that answers requests to the name of these pages, and passes on all others.

    Args:
        check: raises TokenError if the credential of a request has ended.
    """

    def __init__(
        self,
        app: ASGIApp,
        labs: Labs,
        visits: Visits,
        jobs: JobStore,
        people: People,
        check: Callable[[Scope], Awaitable[None]],
    ) -> None:
        self._app = app
        self._labs = labs
        self._visits = visits
        self._jobs = jobs
        self._people = people
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_request = scope["type"] in ("http", "websocket")
        if not is_request or not Headers(scope=scope).get("host", "").startswith(_NAME):
            return await self._app(scope, receive, send)
        ticket = parse_qs(scope["query_string"].decode("latin-1")).get("ticket", [""])[0]
        try:
            if ticket and (entered := self._visits.enter(ticket)):
                return await _welcome(*entered, scope)(scope, receive, send)
            await self._show(scope, receive, send)
        except PlatformError as error:
            await error_response(error)(scope, receive, send)

    async def _show(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = self._visits.find(cookie_parser(Headers(scope=scope).get("cookie", "")).get(_COOKIE, ""))
        if visit is None:
            raise ForbiddenError("Open JupyterLab from the gateway's page or with `mlplatform dev open`.")
        if scope.get("method") not in _READS and (origin := foreign_origin(scope["headers"])):
            raise ForbiddenError(f"Pages of {origin!r} may not use JupyterLab.")
        await self._check(visit.scope)
        job = await self._jobs.get(visit.job_id)  # meanwhile, another person's may have this id
        require(visit.scope, Verb.SHELL, job)
        await self._people.check_shells(job.team)
        scope = identified(scope, principal_of(visit.scope))
        if scope["path"] == f"{_base(job.id)}{_NOTICE}":
            notices = StreamingResponse(_notices(self._jobs, job.id), media_type="text/event-stream", headers=_FRESH)
            return await self._lasting(notices, visit)(scope, receive, send)
        async with self._labs.of(job, _base(job.id)) as lab:
            app = lab.proxy if scope["type"] == "http" else _web_socket(lab)
            await self._lasting(app, visit)(scope, receive, send)

    def _lasting(self, app: ASGIApp, visit: _Visit) -> ASGIApp:
        return until_refused(app, lambda: self._check(visit.scope), CHECK_SECONDS)


async def _notices(jobs: JobStore, job_id: str) -> AsyncIterator[str]:
    """Yield until when a job stays and for whom, as server-sent events: null as long as nobody needs its resources."""
    sent = None
    while True:
        job = await jobs.get(job_id)
        attempt = None if job.stop_requested else job.open_attempt
        until = attempt and attempt.leave_by
        said = {"until": until.isoformat(), "why": attempt.leave_why} if attempt and until else None
        # A comment while nothing changes: it finds browsers that are gone.
        yield f"data: {json.dumps(said)}\n\n" if said != sent else ":\n\n"
        sent = said
        await asyncio.sleep(_UPDATE_SECONDS)


def _welcome(cookie: str, path: str, scope: Scope) -> RedirectResponse:
    answer = RedirectResponse(f"{path}lab", 303)
    answer.set_cookie(_COOKIE, cookie, path=path, httponly=True, samesite="lax", secure=scope["scheme"] == "https")
    return answer


def _web_socket(lab: Lab) -> ASGIApp:
    """Return an application that carries the messages of a WebSocket both ways until one side closes it."""

    async def carry(scope: Scope, receive: Receive, send: Send) -> None:
        here = WebSocket(scope, receive, send)
        options: Any = {"subprotocols": scope["subprotocols"] or None, "compression": None, "max_size": None}
        token = {"Authorization": f"Bearer {lab.token}"}
        try:
            async with unix_connect(
                lab.path, f"ws://lab{target(scope).decode()}", additional_headers=token, **options
            ) as there:
                await here.accept(there.subprotocol)
                await until_one_ends(_to(here, there), _from(here, there))
        except (OSError, InvalidStatus) as error:
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
        await here.close(there.close_code or 1011)
