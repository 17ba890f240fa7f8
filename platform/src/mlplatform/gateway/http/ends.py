"""Routes of Ray's Jobs API that stop and delete jobs; those for other jobs go to the Ray head."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from mlplatform.api import jobs as api
from mlplatform.errors import UnreachableError
from mlplatform.gateway.audit.log import Actor
from mlplatform.gateway.control.reconciler import Reconciler
from mlplatform.gateway.errors import JobIsOpenError
from mlplatform.gateway.http.access import JobOrRaysRight
from mlplatform.gateway.http.auth import actor_of
from mlplatform.gateway.http.description import errors
from mlplatform.gateway.http.jobs import Passed
from mlplatform.gateway.http.routing import router
from mlplatform.gateway.jobs.schema import JobRow
from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.logs.store import JobLogs
from mlplatform.gateway.people.rights import Verb
from mlplatform.gateway.upstream.ray import RayHead
from mlplatform.storage import fence, notice

_Stoppable = Annotated[JobRow | None, Depends(JobOrRaysRight(Verb.STOP))]

_Deletable = Annotated[JobRow | None, Depends(JobOrRaysRight(Verb.DELETE))]


def of_ends(store: JobStore, reconciler: Reconciler, logs: JobLogs, head: RayHead, proxy: ASGIApp) -> APIRouter:
    """Return the routes that stop and delete jobs."""
    routes = router()

    @routes.post("/api/jobs/{job_id}/stop", response_model=api.Stopped, responses=errors(404))
    async def stop_job(request: Request, job: _Stoppable) -> Response:
        """Stop a job; it is not restarted."""
        if job is None:
            return Passed(proxy)
        return JSONResponse({"stopped": await stop(store, reconciler, job, actor_of(request.scope))})

    @routes.delete("/api/jobs/{job_id}", response_model=dict[str, bool], responses=errors(404, 409))
    async def delete(request: Request, job: _Deletable) -> Response:
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
        await _delete_in_ray(head, deleted)
        return JSONResponse({"deleted": True})

    return routes


async def stop(store: JobStore, reconciler: Reconciler, job: JobRow, actor: Actor) -> bool:
    """Stop a job; return False if it had already ended."""
    stopped, job = await store.request_stop(job.id, actor)
    if stopped:
        with suppress(UnreachableError):  # the request is stored, and repeated once the head is back
            await reconciler.stop(job)
        reconciler.wake()
    return stopped


async def _delete_in_ray(head: RayHead, job: JobRow) -> None:
    for attempt in job.attempts:
        if attempt.in_ray:
            try:
                await head.delete(attempt.ray_submission_id)
            except UnreachableError:
                return  # the records that remain in Ray have ids that are never reused
