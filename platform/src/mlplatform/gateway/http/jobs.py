"""Routes of Ray's Jobs API, with the Ray head's paths and responses (`ray/dashboard/modules/job/job_head.py`)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from importlib.resources import files
from typing import Any

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

from mlplatform.contract import ATTEMPT_ID
from mlplatform.errors import UnreachableError
from mlplatform.gateway.audit.log import Actor, AuditLog
from mlplatform.gateway.control.admission import Admission
from mlplatform.gateway.control.disks import Disks
from mlplatform.gateway.control.reconciler import LISTING_SECONDS, Reconciler
from mlplatform.gateway.errors import ForbiddenError, JobIsOpenError, NoSuchJobError, RequestError
from mlplatform.gateway.http import request_body
from mlplatform.gateway.http.access import require
from mlplatform.gateway.http.auth import actor_of, principal_of
from mlplatform.gateway.http.job_views import assign, details_for, listed_for, of_ray_for
from mlplatform.gateway.jobs.details import public_reason
from mlplatform.gateway.jobs.listing import JobList
from mlplatform.gateway.jobs.schema import AttemptRow, JobRow
from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.jobs.submission import Submission
from mlplatform.gateway.logs.store import JobLogs
from mlplatform.gateway.people.rights import Verb, may
from mlplatform.gateway.people.store import People
from mlplatform.gateway.upstream.ray import RayHead
from mlplatform.storage import fence, notice

BODY_BYTES = 768 << 10
"""Size limit of a submission: the agent on the Ray head accepts 1 MiB, and the gateway adds some variables."""

_TAIL_LINES = 1000
"""The default of Ray's `/api/v0/logs/file`."""

_NUMBER = re.compile(r"\d{1,15}", re.ASCII)

_Endpoint = Callable[[Request], Awaitable[ASGIApp]]
"""Responses and the reverse proxy are both ASGI applications."""


class JobRoutes:
    """Endpoints for the gateway's jobs; requests for other jobs go to the Ray head."""

    def __init__(
        self,
        store: JobStore,
        reconciler: Reconciler,
        logs: JobLogs,
        head: RayHead,
        proxy: ASGIApp,
        admission: Admission | None = None,
    ) -> None:
        self._store = store
        self._jobs = JobList(store.engine)
        self._audit = AuditLog(store.engine)
        self._people = People(store.engine)
        self._reconciler = reconciler
        self._logs = logs
        self._head = head
        self._proxy = proxy
        self._admission = admission or Admission(store.engine, reconciler, Disks({}, 0))
        self._version: dict[str, Any] = {}

    def routes(self) -> list[Route | WebSocketRoute]:
        """Return all routes, in the order of matching."""
        return [
            Route("/platform/health", self._health),
            Route("/platform/openapi.yaml", _description),
            Route("/platform/jobs/{job_id}", self._attempts),
            Route("/platform/jobs/{job_id}/log", self._stream),
            Route("/api/version", self._get_version),
            Route("/api/jobs/", self._list, methods=["GET"]),
            Route("/api/jobs/", self._submit, methods=["POST"]),
            Route("/api/jobs/{job_id}", self._own_or_proxied(self._info, Verb.SEE), methods=["GET"]),
            Route("/api/jobs/{job_id}", self._own_or_proxied(self._delete, Verb.DELETE), methods=["DELETE"]),
            Route("/api/jobs/{job_id}/stop", self._own_or_proxied(self._stop, Verb.STOP), methods=["POST"]),
            Route("/api/jobs/{job_id}/logs", self._own_or_proxied(self._get_logs, Verb.LOGS), methods=["GET"]),
            WebSocketRoute("/api/jobs/{job_id}/logs/tail", self._tail),
            Route("/api/v0/logs/file", self._log_file, methods=["GET"]),
            Route("/api/v0/logs/stream", self._log_file, methods=["GET"]),
        ]

    # --- Jobs ---

    async def _submit(self, request: Request) -> Response:
        body = await request_body.whole(request.receive, BODY_BYTES, "upload files as a package")
        job = Submission.parse(body).job()
        await assign(principal_of(request.scope), self._people, job)
        await self._admission.check(job)
        with self._reconciler.bursts.submission():
            await self._store.add(job, actor_of(request.scope))
        self._reconciler.wake()
        return JSONResponse({"job_id": job.id, "submission_id": job.id})

    async def _list(self, request: Request) -> Response:
        texts, others = await asyncio.gather(listed_for(request, self._jobs), self._others())
        principal = principal_of(request.scope)
        texts += [json.dumps(of_ray_for(principal, job)).encode() for job in others]
        return Response(b"[" + b",".join(texts) + b"]", media_type="application/json")

    async def _others(self) -> list[dict[str, Any]]:
        """Return the jobs that bypassed the gateway: submitted to Ray directly, or drivers that connected to it."""
        try:
            cluster = await self._reconciler.look(LISTING_SECONDS)
        except UnreachableError:
            return []
        return [
            *(job for ray_submission_id, job in cluster.jobs.items() if not ATTEMPT_ID.search(ray_submission_id)),
            *cluster.drivers,
        ]

    async def _info(self, request: Request, job: JobRow) -> Response:
        return JSONResponse(details_for(request, job))

    async def _stop(self, request: Request, job: JobRow) -> Response:
        return JSONResponse({"stopped": await stop(self._store, self._reconciler, job, actor_of(request.scope))})

    async def _delete(self, request: Request, job: JobRow) -> Response:
        if not State(job.state).final:
            raise JobIsOpenError(job.id, State(job.state).of_ray)
        await self._reconciler.settle(job)
        await self._logs.delete(job.id)
        # The next job of this id begins with attempt 1.
        for remove in (fence.remove, notice.remove):
            await anyio.to_thread.run_sync(remove, job.id)
        deleted = await self._store.delete(job.id, actor_of(request.scope))
        self._logs.forget(job.id)
        for attempt in deleted.attempts:
            if attempt.in_ray:
                try:
                    await self._head.delete(attempt.ray_submission_id)
                except UnreachableError:
                    break  # the records that remain in Ray have ids that are never reused
        return JSONResponse({"deleted": True})

    # --- Logs ---

    async def _get_logs(self, request: Request, job: JobRow) -> Response:
        return JSONResponse({"logs": await self._logs.text(job.id)})

    async def _tail(self, socket: WebSocket) -> None:
        try:
            job = await self._store.get(socket.path_params["job_id"])
            require(socket.scope, Verb.LOGS, job)
        except (NoSuchJobError, ForbiddenError) as error:
            status = 404 if isinstance(error, NoSuchJobError) else 403
            return await socket.send_denial_response(PlainTextResponse(str(error), status))
        await socket.accept()
        # A job may be silent for days, and its client may disconnect meanwhile.
        sending, leaving = (
            asyncio.create_task(work) for work in (self._send_log(socket, job), _until_disconnect(socket))
        )
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send_log(self, socket: WebSocket, job: JobRow) -> None:
        try:
            async for chunk in self._logs.follow(job.id, ended=State(job.state).final, unfinished=True):
                await socket.send_text(chunk)
            await socket.close()
        except (WebSocketDisconnect, RuntimeError):
            return  # the client disconnected

    async def _stream(self, request: Request) -> Response:
        """Stream a job's log over plain HTTP while it grows; `skip_lines` serves clients that reconnect."""
        job = await self._store.get(request.path_params["job_id"])
        require(request.scope, Verb.LOGS, job)
        skip = request.query_params.get("skip_lines", "0")
        if not _NUMBER.fullmatch(skip):
            raise RequestError(f"Invalid skip_lines={skip[:100]!r}: pass a number of lines, 0 or more.")
        if request.query_params.get("follow") != "1":
            return PlainTextResponse(await self._logs.text(job.id))
        ended = State(job.state).final
        # Lines that are not stored may arrive in another order after a crash, so clients must not count them.
        unfinished = request.query_params.get("unfinished") == "1"
        parts = self._logs.follow(job.id, int(skip), ended=ended, stored=True, unfinished=unfinished)
        return StreamingResponse(_encoded(parts), media_type="text/plain")

    async def _log_file(self, request: Request) -> ASGIApp:
        """Return the driver's log as Ray's state API and dashboard request it, even if its node is gone."""
        name = request.query_params.get("filename", "")
        job_id = request.query_params.get("submission_id") or name.removeprefix("job-driver-").removesuffix(".log")
        try:
            if not (name.startswith("job-driver-") or request.query_params.get("submission_id")):
                raise NoSuchJobError(name)
            job = await self._store.get(job_id)
        except NoSuchJobError:
            return self._proxy
        require(request.scope, Verb.LOGS, job)
        lines = request.query_params.get("lines", str(_TAIL_LINES))
        text = await self._logs.text(job.id)
        return PlainTextResponse(last_lines(text, int(lines)) if _NUMBER.fullmatch(lines) else text)

    # --- The platform's own ---

    async def _attempts(self, request: Request) -> Response:
        job = await self._store.get(request.path_params["job_id"])
        everything = may(principal_of(request.scope), Verb.METADATA, job.person, job.team)
        attempts = [_attempt(attempt, everything) for attempt in job.attempts]
        limits = {
            "limit_s": job.limit_s,
            "max_restarts_on_loss": job.max_restarts_on_loss,
            "max_restarts_on_failure": job.max_restarts_on_failure,
        }
        details = details_for(request, job)
        return JSONResponse({**details, "state": job.state, **limits, "attempts": attempts})

    async def _get_version(self, request: Request) -> Response:
        """Return Ray's version; the last known one while the head is unavailable."""
        try:
            self._version = await self._head.version()
        except UnreachableError:
            if not self._version:
                raise
        return JSONResponse(self._version)

    async def _health(self, request: Request) -> Response:
        await self._store.ping()
        return JSONResponse({"status": "ok"})

    def _own_or_proxied(self, endpoint: Callable[[Request, JobRow], Awaitable[Response]], verb: Verb) -> _Endpoint:
        """Return an endpoint for the gateway's jobs that proxies requests for other jobs to the head.

        Only administrators have other jobs; an action on one of them is recorded before the head gets it.

        Args:
            verb: the right that somebody needs for the job.
        """

        async def answer(request: Request) -> ASGIApp:
            try:
                job = await self._store.get(request.path_params["job_id"])
            except NoSuchJobError:
                if not principal_of(request.scope).administrator:
                    raise
                if verb in (Verb.STOP, Verb.DELETE):
                    await self._audit.add(actor_of(request.scope), verb, f"job {request.path_params['job_id']}")
                return self._proxy
            require(request.scope, verb, job)
            return await endpoint(request, job)

        return answer


async def stop(store: JobStore, reconciler: Reconciler, job: JobRow, actor: Actor) -> bool:
    """Stop a job; return False if it had already ended."""
    stopped, job = await store.request_stop(job.id, actor)
    if stopped:
        with suppress(UnreachableError):  # the request is stored, and repeated once the head is back
            await reconciler.stop(job)
        reconciler.wake()
    return stopped


def _attempt(attempt: AttemptRow, everything: bool) -> dict[str, Any]:
    """Return an attempt; its whole reason is for the job's team only."""
    return {
        "number": attempt.number,
        "ray_submission_id": attempt.ray_submission_id,
        "outcome": attempt.outcome,
        "reason": attempt.reason if everything or attempt.reason is None else public_reason(attempt.reason),
        "node": attempt.node,
        "created": attempt.created.isoformat(),
        "ended": attempt.ended.isoformat() if attempt.ended else None,
        "leave_by": attempt.leave_by.isoformat() if attempt.leave_by else None,
        "leave_why": attempt.leave_why,
    }


async def _description(_: Request) -> Response:
    """Return the OpenAPI description of the gateway."""
    text = files("mlplatform.gateway.http").joinpath("openapi.yaml").read_text("utf-8")
    return Response(text, media_type="application/yaml")


async def _until_disconnect(socket: WebSocket) -> None:
    """Read and drop messages until the client disconnects."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass


async def _encoded(chunks: AsyncIterator[str]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        yield chunk.encode()


def last_lines(text: str, count: int) -> str:
    """Return the last lines of a text; a list of all lines would take many times its memory."""
    begin = len(text) - text.endswith("\n")
    for _ in range(count):
        begin = text.rfind("\n", 0, begin)
        if begin < 0:
            return text
    return text[begin + 1 :] if count else ""
