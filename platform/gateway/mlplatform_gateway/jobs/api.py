"""Routes of Ray's Jobs API, with the Ray head's paths and responses (`ray/dashboard/modules/job/job_head.py`)."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mlplatform.api import jobs as api
from mlplatform.contract import ATTEMPT_ID
from mlplatform.errors import UnreachableError
from mlplatform.storage import fence, notice
from mlplatform_gateway.audit.store import Actor
from mlplatform_gateway.errors import JobIsOpenError
from mlplatform_gateway.http.access import OPEN, USERS, User, of_job, of_job_or_rays
from mlplatform_gateway.http.auth import actor_of, principal_of
from mlplatform_gateway.http.description import errors
from mlplatform_gateway.http.request_body import JsonBody
from mlplatform_gateway.jobs.admission import Admission
from mlplatform_gateway.jobs.details import public_reason
from mlplatform_gateway.jobs.listing import JobList
from mlplatform_gateway.jobs.loop import Reconciler
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.jobs.submission import Submission
from mlplatform_gateway.jobs.views import assign, details_for, listed_for, of_ray_for
from mlplatform_gateway.people.rights import Verb, may
from mlplatform_gateway.people.store import People
from mlplatform_gateway.ray.cluster import LISTING_SECONDS, Cluster
from mlplatform_gateway.ray.head import RayHead

BODY_BYTES = 768 << 10
"""Size limit of a submission: the agent on the Ray head accepts 1 MiB, and the gateway adds some variables."""

_Submission = Annotated[
    Submission, Depends(JsonBody(Submission, BODY_BYTES, "upload files as a package", parse=Submission.parse))
]
_Shown = Annotated[JobRow, of_job(Verb.SEE)]
_ShownOrRays = Annotated[JobRow | None, of_job_or_rays(Verb.SEE)]
_Stopped = Annotated[JobRow | None, of_job_or_rays(Verb.STOP)]
_Deleted = Annotated[JobRow | None, of_job_or_rays(Verb.DELETE)]


class Passed(Response):
    """The answer of another application: of the proxy to the head, about a job that only Ray has."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer."""
        await self._app(scope, receive, send)


def routes(services: Services, reconciler: Reconciler, admission: Admission, proxy: ASGIApp) -> APIRouter:
    """Return the routes that submit, list and show jobs; requests for other jobs go to the Ray head."""
    router, store = APIRouter(), services.store
    jobs, people = JobList(store.engine), People(store.engine)

    @router.post("/api/jobs/", dependencies=[USERS], responses=errors(409, 422, 429, 507))
    async def submit(request: Request, sent: _Submission) -> api.Submitted:
        """Submit a job."""
        job = sent.job()
        await assign(principal_of(request.scope), people, job)
        await admission.check(job)
        with reconciler.bursts.submission():
            await store.add(job, actor_of(request.scope))
        reconciler.wake()
        return api.Submitted(job_id=job.id, submission_id=job.id)

    @router.get("/api/jobs/", response_model=list[api.Job])
    async def list_jobs(request: Request, principal: User) -> Response:
        """All jobs in the order of submission, then the drivers that connected to Ray directly."""
        texts, others = await asyncio.gather(listed_for(request, jobs), _others(services.cluster))
        texts += [json.dumps(of_ray_for(principal, job)).encode() for job in others]
        return Response(b"[" + b",".join(texts) + b"]", media_type="application/json")

    @router.get("/api/jobs/{job_id}", response_model=api.Job, responses=errors(404))
    async def show(request: Request, job: _ShownOrRays) -> Response:
        """A job."""
        return Passed(proxy) if job is None else JSONResponse(details_for(request, job))

    @router.get("/platform/jobs/{job_id}", responses=errors(404))
    async def show_attempts(request: Request, job: _Shown) -> api.JobWithAttempts:
        """A job with its attempts: Ray's details, the job's own state, and its attempts in order."""
        everything = may(principal_of(request.scope), Verb.METADATA, job.person, job.team)
        return api.JobWithAttempts(
            **details_for(request, job),
            state=job.state,
            limit_s=job.limit_s,
            max_restarts_on_loss=job.max_restarts_on_loss,
            max_restarts_on_failure=job.max_restarts_on_failure,
            attempts=[_attempt(attempt, everything) for attempt in job.attempts],
        )

    return router


def end_routes(services: Services, reconciler: Reconciler, proxy: ASGIApp) -> APIRouter:
    """Return the routes that stop and delete jobs; requests for other jobs go to the Ray head."""
    router, store, logs = APIRouter(), services.store, services.logs

    @router.post("/api/jobs/{job_id}/stop", response_model=api.Stopped, responses=errors(404))
    async def stop_job(request: Request, job: _Stopped) -> api.Stopped | Response:
        """Stop a job; it is not restarted."""
        if job is None:
            return Passed(proxy)
        return api.Stopped(stopped=await stop(store, reconciler, job, actor_of(request.scope)))

    @router.delete("/api/jobs/{job_id}", response_model=dict[str, bool], responses=errors(404, 409))
    async def delete(request: Request, job: _Deleted) -> dict[str, bool] | Response:
        """Delete an ended job and its log."""
        if job is None:
            return Passed(proxy)
        if not State(job.state).final:
            raise JobIsOpenError(job.id, State(job.state).of_ray)
        await reconciler.settle(job)
        await logs.delete(job.id)
        # The next job of this id begins with attempt 1.
        for remove in (fence.remove, notice.remove):
            await anyio.to_thread.run_sync(remove, job.id)
        deleted = await store.delete(job.id, actor_of(request.scope))
        logs.forget(job.id)
        await _delete_in_ray(services.head, deleted)
        return {"deleted": True}

    return router


def state_routes(store: JobStore, head: RayHead) -> APIRouter:
    """Return the routes for the gateway's health and Ray's version."""
    router = APIRouter()
    known: dict[str, Any] = {}

    @router.get("/platform/health", dependencies=[OPEN])
    async def health() -> dict[str, str]:
        """Health of the gateway and its database; needs no token."""
        await store.ping()
        return {"status": "ok"}

    @router.get("/api/version", dependencies=[USERS])
    async def version() -> dict[str, Any]:
        """Versions of Ray and of its Jobs API; the last known ones while the head is unavailable."""
        nonlocal known
        try:
            known = await head.version()
        except UnreachableError:
            if not known:
                raise
        return known

    return router


async def stop(store: JobStore, reconciler: Reconciler, job: JobRow, actor: Actor) -> bool:
    """Stop a job; return False if it had already ended."""
    stopped, job = await store.request_stop(job.id, actor)
    if stopped:
        with suppress(UnreachableError):  # the request is stored, and repeated once the head is back
            await reconciler.stop(job)
        reconciler.wake()
    return stopped


async def _delete_in_ray(head: RayHead, job: JobRow) -> None:
    with suppress(UnreachableError):  # the records that remain in Ray have ids that are never reused
        for attempt in job.attempts:
            if attempt.in_ray:
                await head.delete(attempt.ray_submission_id)


async def _others(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the jobs that bypassed the gateway: submitted to Ray directly, or drivers that connected to it."""
    try:
        listed = await cluster.look(LISTING_SECONDS)
    except UnreachableError:
        return []
    return [
        *(job for ray_submission_id, job in listed.jobs.items() if not ATTEMPT_ID.search(ray_submission_id)),
        *listed.drivers,
    ]


def _attempt(attempt: AttemptRow, everything: bool) -> api.Attempt:
    """Return an attempt; its whole reason is for the job's team only."""
    shown = api.Attempt.model_validate(attempt)
    if everything or shown.reason is None:
        return shown
    return shown.model_copy(update={"reason": public_reason(shown.reason)})
