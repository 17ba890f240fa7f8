"""Routes for logs: those of the log shipper, Ray's for the logs of jobs, and a stream over plain HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, WebSocket
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import ASGIApp
from starlette.websockets import WebSocketDisconnect

from mlplatform.api.jobs import Log
from mlplatform_gateway.errors import NoSuchJobError, RequestError
from mlplatform_gateway.http import request_body
from mlplatform_gateway.http.access import OF_LOG_SHIPPER, USERS, of_job, of_job_or_rays, require
from mlplatform_gateway.http.description import errors, raw_body
from mlplatform_gateway.http.errors import error_response
from mlplatform_gateway.jobs.api import Passed
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.logs.models import Again, Expected, FileName, Pass, Position, Requested
from mlplatform_gateway.logs.store import JobLogs
from mlplatform_gateway.people.rights import Verb

INSTANCE = "X-Gateway-Instance"
"""Header of every response of the gateway; its value changes when the gateway restarts."""

BODY_BYTES = 1 << 20

_HOLD_SECONDS = 2.0
"""Maximum time that a request is held; it delays the end of the gateway by as much."""

_SMALLER = "send it in several requests"

_PASS = Depends(request_body.JsonBody(Pass, BODY_BYTES, _SMALLER))

_OTHER_OFFSET: dict[int | str, dict[str, Any]] = {
    409: {"model": Expected, "description": "The body begins at another offset."}
}
_TAIL_LINES = 1000
"""The default of Ray's `/api/v0/logs/file`."""

_NUMBER = re.compile(r"\d{1,15}", re.ASCII)

_Job = Annotated[JobRow, of_job(Verb.LOGS)]
_JobOrRays = Annotated[JobRow | None, of_job_or_rays(Verb.LOGS)]

_Follow = Annotated[
    str,
    Query(
        description="1 to stream until the job has ended. A line is sent once it is stored, or once the object store "
        "has rejected it."
    ),
]
_Unfinished = Annotated[
    str,
    Query(
        description="With 1, a stream has unfinished lines, too: they grow, or begin again after a carriage return, "
        "and what stands between the last carriage return and the line feed is the line."
    ),
]
_Skip = Annotated[
    str,
    Query(
        description="Lines to skip, for a client that reconnects with the number of lines that it has read. Stored "
        "lines keep their numbers when the gateway restarts or crashes. The line that stands for the omitted middle of "
        "a long log, `mlplatform: <size> MiB of this log (<number> lines) were omitted here.`, counts as that many."
    ),
]
_File = Annotated[str, Query(description="`job-driver-<job id>.log`")]
_Lines = Annotated[str, Query(description="Number of last lines; -1 for all.")]


def shipper_routes(logs: JobLogs) -> APIRouter:
    """Return the routes for the log shipper: upload bytes of a file, report a pass, wait for a request for one."""
    router = APIRouter(dependencies=[OF_LOG_SHIPPER])

    @router.get("/platform/logs", include_in_schema=False)
    async def get(node: Annotated[list[str], Query(default_factory=list)]) -> Requested:
        """Tell, within 2 s, whether someone waits for a pass of one of the nodes."""
        return Requested(requested=await logs.passes.wait_for_request(node, _HOLD_SECONDS))

    @router.put(
        "/platform/logs/{node}/{file}",
        response_model=Expected,
        responses={**errors(404, 410), **_OTHER_OFFSET},
        openapi_extra=raw_body("At most 1 MiB; an empty body queries the offset.", required=False),
    )
    async def put(
        request: Request, response: Response, node: FileName, file: FileName, at: Annotated[Position, Query()]
    ) -> Expected | Response:
        """Bytes of a log file, from a log shipper."""
        body = await request_body.whole(request.receive, BODY_BYTES, _SMALLER)
        where = (node, at.session, file, at.offset, at.inode)
        try:
            found = await logs.accept(*where, body, restart=at.restart, more=at.more == "1")
        except OSError as error:
            return error_response(error)
        # Nothing is accepted of a body at another offset; an empty body is a query.
        if body and not found.at_offset:
            response.status_code = 409
        return Expected(expected=found.expected)

    @router.post("/platform/logs/{node}")
    async def post(node: FileName, reported: Annotated[Pass, _PASS]) -> Again:
        """A log shipper's report that it sent everything up to a moment."""
        # Bytes that an earlier instance accepted may have been lost with it.
        restarted = reported.instance != logs.instance
        return Again(again=restarted or logs.passes.report(node, reported.pass_started))

    return router


def routes(logs: JobLogs, proxy: ASGIApp) -> APIRouter:
    """Return the routes for logs; requests for those of other jobs go to the Ray head."""
    router = APIRouter()

    @router.get("/platform/jobs/{job_id}/log", response_class=PlainTextResponse, responses=errors(404))
    async def stream(
        job: _Job, follow: _Follow = "0", unfinished: _Unfinished = "0", skip_lines: _Skip = "0"
    ) -> Response:
        """A job's log, as of now or while it grows."""
        if not _NUMBER.fullmatch(skip_lines):
            raise RequestError(f"Invalid skip_lines={skip_lines[:100]!r}: pass a number of lines, 0 or more.")
        if follow != "1":
            return PlainTextResponse(await logs.text(job.id))
        ended = State(job.state).final
        # Lines that are not stored may arrive in another order after a crash, so clients must not count them.
        parts = logs.follow(job.id, int(skip_lines), ended=ended, stored=True, unfinished=unfinished == "1")
        return StreamingResponse(_encoded(parts), media_type="text/plain")

    @router.get("/api/jobs/{job_id}/logs", response_model=Log, responses=errors(404))
    async def whole(job: _JobOrRays) -> Log | Response:
        """A job's whole log, of all attempts and all nodes."""
        return Passed(proxy) if job is None else Log(logs=await logs.text(job.id))

    @router.websocket("/api/jobs/{job_id}/logs/tail")
    async def tail(socket: WebSocket, job: _Job) -> None:
        await _tail(socket, logs, job)

    return router


def driver_routes(store: JobStore, logs: JobLogs, proxy: ASGIApp) -> APIRouter:
    """Return the routes of Ray's state API for logs; requests for other files go to the Ray head."""
    router = APIRouter()

    @router.get("/api/v0/logs/stream", dependencies=[USERS], include_in_schema=False)
    @router.get("/api/v0/logs/file", dependencies=[USERS], response_class=PlainTextResponse, responses=errors(404))
    async def of_driver(
        request: Request, filename: _File = "", submission_id: str = "", lines: _Lines = str(_TAIL_LINES)
    ) -> Response:
        """A job's log, for Ray's state API and dashboard; requests for other files go to Ray."""
        if not (submission_id or filename.startswith("job-driver-")):
            return Passed(proxy)
        try:
            job = await store.get(submission_id or filename.removeprefix("job-driver-").removesuffix(".log"))
        except NoSuchJobError:
            return Passed(proxy)
        require(request.scope, Verb.LOGS, job)
        text = await logs.text(job.id)
        return PlainTextResponse(last_lines(text, int(lines)) if _NUMBER.fullmatch(lines) else text)

    return router


def last_lines(text: str, count: int) -> str:
    """Return the last lines of a text; a list of all lines would take many times its memory."""
    begin = len(text) - text.endswith("\n")
    for _ in range(count):
        begin = text.rfind("\n", 0, begin)
        if begin < 0:
            return text
    return text[begin + 1 :] if count else ""


async def _tail(socket: WebSocket, logs: JobLogs, job: JobRow) -> None:
    """Send a log while it grows, until the job has ended or the client disconnects."""
    await socket.accept()
    # A job may be silent for days, and its client may disconnect meanwhile.
    sending, leaving = (asyncio.create_task(work) for work in (_send_log(socket, logs, job), _until_disconnect(socket)))
    try:
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
    finally:
        sending.cancel()
        leaving.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)


async def _send_log(socket: WebSocket, logs: JobLogs, job: JobRow) -> None:
    try:
        async for chunk in logs.follow(job.id, ended=State(job.state).final, unfinished=True):
            await socket.send_text(chunk)
        await socket.close()
    except (WebSocketDisconnect, RuntimeError):
        return  # the client disconnected


async def _until_disconnect(socket: WebSocket) -> None:
    """Read and drop messages until the client disconnects."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass


async def _encoded(chunks: AsyncIterator[str]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        yield chunk.encode()
