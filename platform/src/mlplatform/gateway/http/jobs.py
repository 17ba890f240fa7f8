"""Routes of Ray's Jobs API, with the Ray head's paths and responses (`ray/dashboard/modules/job/job_head.py`)."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mlplatform.api import jobs as api
from mlplatform.contract import ATTEMPT_ID
from mlplatform.errors import UnreachableError
from mlplatform.gateway.control.reconciler import Reconciler
from mlplatform.gateway.http.access import OPEN, JobOrRaysRight, JobRight, User
from mlplatform.gateway.http.admission import Admission
from mlplatform.gateway.http.auth import actor_of
from mlplatform.gateway.http.description import errors
from mlplatform.gateway.http.job_views import JobLists, assign, details_for, of_ray_for
from mlplatform.gateway.http.routing import JsonBody, router
from mlplatform.gateway.jobs.details import public_reason
from mlplatform.gateway.jobs.schema import AttemptRow, JobRow
from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.jobs.submission import Submission
from mlplatform.gateway.people.principal import Principal
from mlplatform.gateway.people.rights import Verb, may
from mlplatform.gateway.people.store import People
from mlplatform.gateway.upstream.ray import RayHead

BODY_BYTES = 768 << 10
"""Size limit of a submission: the agent on the Ray head accepts 1 MiB, and the gateway adds some variables."""

_OTHERS_SECONDS = 3.0
"""Timeout for the jobs that only Ray has: the list does not wait for a head that hangs."""


_Seen = Annotated[JobRow, Depends(JobRight(Verb.SEE))]

_SeenOrRays = Annotated[JobRow | None, Depends(JobOrRaysRight(Verb.SEE))]


class _SubmissionBody(JsonBody[Submission]):
    def parse(self, body: bytes) -> Submission:
        return Submission.parse(body)


_BODY = _SubmissionBody(Submission, BODY_BYTES, "upload files as a package")


class Passed(Response):
    """The answer of another application: of the proxy to the head, about a job that only Ray has."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer."""
        await self._app(scope, receive, send)


def of_jobs(store: JobStore, reconciler: Reconciler, proxy: ASGIApp, admission: Admission) -> APIRouter:
    """Return the routes that list, show and submit jobs; requests for other jobs go to the Ray head."""
    routes, lists, people = router(), JobLists(store.engine), People(store.engine)

    @routes.get("/api/jobs/", response_model=list[api.Job])
    async def list_jobs(request: Request, principal: User) -> Response:
        """All jobs in the order of submission, then the drivers that connected to Ray directly."""
        texts, others = await asyncio.gather(lists.encoded(request), _others(reconciler))
        texts += [json.dumps(of_ray_for(principal, job)).encode() for job in others]
        return Response(b"[" + b",".join(texts) + b"]", media_type="application/json")

    @routes.post("/api/jobs/", response_model=api.Submitted, responses=errors(409, 422, 429, 507))
    async def submit(request: Request, principal: User, sent: Annotated[Submission, Depends(_BODY)]) -> Response:
        """Submit a job."""
        job = sent.job()
        await assign(principal, people, job)
        await admission.check(job)
        with reconciler.bursts.submission():
            await store.add(job, actor_of(request.scope))
        reconciler.wake()
        return JSONResponse({"job_id": job.id, "submission_id": job.id})

    @routes.get("/api/jobs/{job_id}", response_model=api.Job, responses=errors(404))
    async def show(request: Request, job: _SeenOrRays) -> Response:
        """A job."""
        return Passed(proxy) if job is None else JSONResponse(details_for(request, job))

    return routes


def of_platform(store: JobStore, head: RayHead) -> APIRouter:
    """Return the routes for the attempts of a job, the gateway's health and Ray's version."""
    routes, known = router(), dict[str, Any]()

    @routes.get("/platform/health", dependencies=[Depends(OPEN)])
    async def health() -> dict[str, str]:
        """Health of the gateway and its database; needs no token."""
        await store.ping()
        return {"status": "ok"}

    @routes.get("/api/version")
    async def version(_: User) -> dict[str, Any]:
        """Versions of Ray and of its Jobs API; the last known ones while the head is unavailable."""
        try:
            known.update(await head.version())
        except UnreachableError:
            if not known:
                raise
        return known

    @routes.get("/platform/jobs/{job_id}", response_model=api.JobWithAttempts, responses=errors(404))
    async def with_attempts(request: Request, principal: User, job: _Seen) -> Any:
        """A job with its attempts: Ray's details, the job's own state, and its attempts in order."""
        limits = {
            "limit_s": job.limit_s,
            "max_restarts_on_loss": job.max_restarts_on_loss,
            "max_restarts_on_failure": job.max_restarts_on_failure,
        }
        attempts = [_attempt(attempt, principal, job) for attempt in job.attempts]
        return {**details_for(request, job), "state": job.state, **limits, "attempts": attempts}

    return routes


async def _others(reconciler: Reconciler) -> list[dict[str, Any]]:
    """Return the jobs that bypassed the gateway: submitted to Ray directly, or drivers that connected to it."""
    try:
        async with asyncio.timeout(_OTHERS_SECONDS):
            cluster = await reconciler.look()
    except (UnreachableError, TimeoutError):
        return []
    return [
        *(job for ray_submission_id, job in cluster.jobs.items() if not ATTEMPT_ID.search(ray_submission_id)),
        *cluster.drivers,
    ]


def _attempt(attempt: AttemptRow, principal: Principal, job: JobRow) -> api.Attempt:
    """Return an attempt; its whole reason is for the job's team only."""
    shown = api.Attempt.model_validate(attempt)
    if shown.reason is not None and not may(principal, Verb.METADATA, job.person, job.team):
        shown.reason = public_reason(shown.reason)
    return shown
