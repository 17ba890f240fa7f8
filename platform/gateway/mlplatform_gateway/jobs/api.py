"""Routes for jobs: Ray's Jobs API, as in `ray/dashboard/modules/job/job_head.py`, and the platform's own."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mlplatform.api import jobs as api
from mlplatform.contract import ATTEMPT_ID, RUNS
from mlplatform.errors import UnreachableError
from mlplatform.storage import fence, notice
from mlplatform_gateway.audit.store import Actor
from mlplatform_gateway.errors import JobIsOpenError, NotResumableError, RequestError
from mlplatform_gateway.http.access import OPEN, USERS, AnAttempt, User, of_job, of_job_or_rays
from mlplatform_gateway.http.auth import actor_of, principal_of
from mlplatform_gateway.http.description import errors
from mlplatform_gateway.http.request_body import JsonBody
from mlplatform_gateway.jobs.admission import Admission
from mlplatform_gateway.jobs.containment import unless_log_unavailable
from mlplatform_gateway.jobs.details import JobList, entry_amounts, public_attempt
from mlplatform_gateway.jobs.ending import has_checkpoint
from mlplatform_gateway.jobs.housekeeping import JobRuns
from mlplatform_gateway.jobs.loop import Reconciler
from mlplatform_gateway.jobs.repeats import repetition, with_arguments
from mlplatform_gateway.jobs.resuming import Resumption, check_resumable
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.jobs.submission import Submission
from mlplatform_gateway.jobs.views import (
    assign,
    check_team,
    check_values,
    details_for,
    listed_for,
    name_user,
    of_ray_for,
)
from mlplatform_gateway.packages.store import Packages, package_names
from mlplatform_gateway.people.rights import Verb, allows, relation
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
_Ended = Annotated[JobRow, of_job(Verb.RESUME)]
_Repeated = Annotated[JobRow, of_job(Verb.AGAIN)]
_Arguments = Annotated[api.Arguments, Depends(JsonBody(api.Arguments, 16 << 10, "use a file", empty=b"{}"))]
_Changes = Annotated[api.Changes, Depends(JsonBody(api.Changes, 4 << 10, empty=b"{}"))]
_RUN = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

_RunId = Annotated[str, Path(json_schema_extra={"pattern": f"^{_RUN.pattern}$"})]
_Own = Annotated[str, Query(description="1 for the run that all attempts of the job share.")]


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

    async def enter(request: Request, job: JobRow) -> api.Submitted:
        await assign(principal_of(request.scope), people, job)
        await admission.check(job)
        with reconciler.bursts.submission():
            await store.add(job, actor_of(request.scope))
        reconciler.wake()
        return api.Submitted(job_id=job.id, submission_id=job.id)

    @router.post("/api/jobs/", dependencies=[USERS], responses=errors(404, 409, 422, 429, 507))
    async def submit(request: Request, sent: _Submission) -> api.Submitted:
        """Submit a job."""
        return await enter(request, sent.job())

    @router.post("/platform/jobs/{job_id}/again", responses=errors(404, 409, 422, 429, 507))
    async def again(request: Request, job: _Repeated, sent: _Arguments) -> api.Submitted:
        """Submit a job again with other arguments, for its team: the same package, environment and resources.

        Not if it has variables whose values the caller may not read.
        """
        check_values(principal_of(request.scope), job)
        await _check_packages(services.packages, job)
        command = with_arguments(job.entrypoint, sent.arguments)
        repeated = repetition(job, entrypoint=command, person=None, team=None)
        name_user(repeated, sent.user)
        return await enter(request, repeated)

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
        to_job = relation(principal_of(request.scope), job.person, job.team)
        return api.JobWithAttempts(
            **details_for(request, job),
            state=job.state,
            relation=to_job,
            limit_s=job.limit_s,
            links=api.Links.model_validate(job),
            max_restarts_on_loss=job.max_restarts_on_loss,
            max_restarts_on_failure=job.max_restarts_on_failure,
            resources=entry_amounts(job),
            attempts=[public_attempt(attempt, allows(to_job, Verb.METADATA)) for attempt in job.attempts],
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


def resume_routes(services: Services, reconciler: Reconciler, admission: Admission) -> APIRouter:
    """Return the route `POST /platform/jobs/{job_id}/resume`."""
    router, resumption = APIRouter(), Resumption(services.store.engine)

    @router.post("/platform/jobs/{job_id}/resume", responses=errors(404, 409, 422, 429, 507))
    async def resume(request: Request, job: _Ended, changes: _Changes) -> api.Resumed:
        """Continue a job that was stopped or has failed, for its owner, leads of its team and administrators.

        The same job and run continue with the next attempt, from the last checkpoint if there is one, behind the jobs
        that wait already. Allowed restarts are counted from the beginning.
        """
        principal = principal_of(request.scope)
        check_team(principal, job)
        check_resumable(job)
        job.token = principal.token_id or None
        await admission.check(job)
        await _check_packages(services.packages, job)
        # The runs of the ended job are closed first, else the run of the resumed one would be.
        await reconciler.settle(job)
        message = await _message(job, principal.person)
        resumed = await resumption.resume(job.id, message, actor_of(request.scope), changes.limit, job.token)
        await unless_log_unavailable(services.logs.reopen(job.id, resumed.message))
        reconciler.wake()
        return api.Resumed(submission_id=resumed.id, limit_s=resumed.limit_s, message=resumed.message)

    return router


async def _check_packages(packages: Packages, job: JobRow) -> None:
    for name in package_names(job.runtime_env):
        if not await packages.exists(name):
            raise NotResumableError(
                f"The files of job {job.id}, package {name}, were removed since it ended; submit it again."
            )


async def _message(job: JobRow, person: str) -> str:
    resumes = await anyio.to_thread.run_sync(has_checkpoint, job.id)
    where = "continues from its last checkpoint" if resumes else "starts from the beginning"
    number = len(job.attempts) + 1
    by = f" by {person}" if person else ""
    return f"The job was resumed{by}: attempt {number} {where} as soon as there is room."


def attempt_routes(runs: JobRuns) -> APIRouter:
    """Return the route by which attempts report their runs."""
    router = APIRouter()

    @router.put(f"{RUNS}/{{run_id}}")
    async def report(principal: AnAttempt, run_id: _RunId, own: _Own = "0") -> dict[str, str]:
        """Record a run at MLflow as one of the job; only with the attempt's own token.

        It ends with the job, and the job's links may lead to it.
        """
        if not _RUN.fullmatch(run_id):
            raise RequestError(f"Invalid id of a run {run_id[:100]!r}: use up to 64 letters, digits, '-' and '_'.")
        assert principal.attempt is not None  # noqa: S101 - the right admits attempts only
        await runs.report(principal.attempt.job, principal.attempt.number, run_id, own == "1")
        return {"recorded": run_id}

    return router
