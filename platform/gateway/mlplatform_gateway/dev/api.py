"""Routes for work inside running jobs: SSH over a WebSocket, and the way to JupyterLab."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, WebSocket
from starlette.websockets import WebSocketDisconnect

from mlplatform.api.jobs import Page
from mlplatform_gateway.audit.store import AuditLog
from mlplatform_gateway.dev import pages
from mlplatform_gateway.dev.shell import PART_BYTES, running, shell, until_one_ends
from mlplatform_gateway.errors import ForbiddenError, RequestError
from mlplatform_gateway.http.access import of_job
from mlplatform_gateway.http.auth import actor_of, credential_in
from mlplatform_gateway.http.description import errors
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.people.rights import Verb
from mlplatform_gateway.people.store import People
from mlplatform_gateway.ray.head import RayHead

_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{68}", re.ASCII)

_Job = Annotated[JobRow, of_job(Verb.SHELL)]


def routes(head: RayHead, audit: AuditLog, people: People, visits: pages.Visits) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.websocket("/platform/jobs/{job_id}/ssh")
    async def ssh(socket: WebSocket, job: _Job, key: str, rank: Annotated[int | None, Query(ge=0)] = None) -> None:
        actor = actor_of(socket.scope)
        if actor.kind == "session":
            raise ForbiddenError("A browser opens no shell; use `mlplatform ssh`.")
        if not _KEY.fullmatch(key):
            raise RequestError(f"Invalid key={key[:100]!r}: pass an ed25519 key of OpenSSH.")
        await people.check_shells(job.team)
        async with shell(head, job, key, rank) as stream:
            await audit.add(actor, "shell", f"job {job.id}")
            await socket.accept()
            await until_one_ends(_to_job(socket, stream), _from_job(socket, stream))

    @router.post("/platform/jobs/{job_id}/lab", response_model=Page, responses=errors(404, 409))
    async def lab(request: Request, job: _Job) -> Page:
        """Return an address of JupyterLab in a running job, which a browser can open once, within a minute."""
        await people.check_shells(job.team)
        running(job)
        address = visits.begin(job.id, credential_in(request.scope), pages.name_beside(request))
        await audit.add(actor_of(request.scope), "shell", f"job {job.id}")
        return Page(address=f"{request.url.scheme}://{address}")

    return router


async def _to_job(socket: WebSocket, stream: Any) -> None:
    try:
        while True:
            await stream.write(await socket.receive_bytes())
    except WebSocketDisconnect:
        return


async def _from_job(socket: WebSocket, stream: Any) -> None:
    while part := await stream.read(PART_BYTES):
        await socket.send_bytes(part)
    await socket.close()
