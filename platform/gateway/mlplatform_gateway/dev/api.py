"""Route for shells in jobs: SSH over a WebSocket, which the gateway carries to the agent of the job's node."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, WebSocket
from starlette.websockets import WebSocketDisconnect

from mlplatform.contract import SSH
from mlplatform_gateway.audit.store import AuditLog
from mlplatform_gateway.errors import ForbiddenError, NoShellError, RequestError
from mlplatform_gateway.http.access import of_job
from mlplatform_gateway.http.auth import actor_of
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.people.rights import Verb
from mlplatform_gateway.ray.head import RayHead

_PART_BYTES = 1 << 16

_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{68}", re.ASCII)

_Job = Annotated[JobRow, of_job(Verb.SHELL)]


def routes(head: RayHead, audit: AuditLog) -> APIRouter:
    """Return the route."""
    router = APIRouter()

    @router.websocket("/platform/jobs/{job_id}/ssh")
    async def ssh(socket: WebSocket, job: _Job, key: str, rank: Annotated[int | None, Query(ge=0)] = None) -> None:
        actor = actor_of(socket.scope)
        if actor.kind == "session":
            raise ForbiddenError("A browser opens no shell; use `mlplatform ssh`.")
        if not _KEY.fullmatch(key):
            raise RequestError(f"Invalid key={key[:100]!r}: pass an ed25519 key of OpenSSH.")
        attempt = job.attempts[-1] if job.attempts else None
        if State(job.state) is not State.RUNNING or attempt is None or not attempt.agent:
            raise NoShellError(f"Job {job.id} is {job.state}; a shell can be opened while it runs.")
        agent, process = await _place(head, attempt, rank)
        given = {"job": job.id, "attempt": str(attempt.number), "key": key, **process}
        async with head.upgraded(agent, SSH, **given) as stream:
            await audit.add(actor, "shell", f"job {job.id}")
            await socket.accept()
            await _carry(socket, stream)

    return router


async def _place(head: RayHead, attempt: AttemptRow, rank: int | None) -> tuple[str, dict[str, str]]:
    """Return the address of an agent, and the process there: the entry point, or a rank of the job's training.

    Raises:
        NoShellError: no training that runs has the rank.
        UnreachableError: Ray's head is unavailable.
    """
    agent = str(attempt.agent)
    if rank is None:
        return agent, {"pid": "", "gpus": ""}
    worker = await head.training_worker(attempt.ray_job_id or "", rank)
    if worker is None:
        raise NoShellError(f"Job {attempt.job_id} has no training of Ray Train with a rank {rank} that runs.")
    # The agents of a cluster have the same port.
    there = f"http://{worker['node_ip']}:{urlsplit(agent).port}"
    return there, {"pid": str(worker["pid"]), "gpus": ",".join(map(str, worker["gpu_ids"]))}


async def _carry(socket: WebSocket, stream: Any) -> None:
    """Carry bytes both ways until one side closes the connection."""
    ways = [asyncio.create_task(way) for way in (_to_job(socket, stream), _from_job(socket, stream))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _to_job(socket: WebSocket, stream: Any) -> None:
    try:
        while True:
            await stream.write(await socket.receive_bytes())
    except WebSocketDisconnect:
        return


async def _from_job(socket: WebSocket, stream: Any) -> None:
    while part := await stream.read(_PART_BYTES):
        await socket.send_bytes(part)
    await socket.close()
