"""Routes for arrays of jobs."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.gateway.control.reconciler import Reconciler
from mlplatform.gateway.http import request_body
from mlplatform.gateway.http.access import require
from mlplatform.gateway.http.admission import Admission
from mlplatform.gateway.http.auth import actor_of, principal_of
from mlplatform.gateway.http.job_views import assign
from mlplatform.gateway.http.jobs import BODY_BYTES, stop
from mlplatform.gateway.jobs.arrays import Arrays, ArraySubmission
from mlplatform.gateway.jobs.details import public_reason
from mlplatform.gateway.jobs.schema import JobRow
from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.people.principal import Principal
from mlplatform.gateway.people.rights import Verb, may
from mlplatform.gateway.people.store import People


class ArrayRoutes:
    """Endpoints below `/platform/arrays`; errors are plain text."""

    def __init__(self, store: JobStore, people: People, reconciler: Reconciler, admission: Admission) -> None:
        self._store = store
        self._arrays = Arrays(store.engine)
        self._people = people
        self._reconciler = reconciler
        self._admission = admission

    def routes(self) -> list[Route]:
        """Return all routes."""
        return [
            Route("/platform/arrays", self._submit, methods=["POST"]),
            Route("/platform/arrays/{array_id}", self._members, methods=["GET"]),
            Route("/platform/arrays/{array_id}/stop", self._stop, methods=["POST"]),
        ]

    async def _submit(self, request: Request) -> Response:
        """Store all jobs of an array, or none."""
        body = await request_body.whole(request.receive, BODY_BYTES, "upload files as a package")
        jobs = ArraySubmission.parse(body).jobs()
        await assign(principal_of(request.scope), self._people, *jobs)
        await self._admission.check(jobs[0], len(jobs))
        with self._reconciler.bursts.submission():
            await self._arrays.add(jobs, actor_of(request.scope))
        self._reconciler.wake()
        return JSONResponse({"array": jobs[0].array_id, "jobs": [job.id for job in jobs]})

    async def _members(self, request: Request) -> Response:
        """Respond with the id and the state of each job of an array."""
        jobs = await self._arrays.members(request.path_params["array_id"])
        principal = principal_of(request.scope)
        return JSONResponse({"array": jobs[0].array_id, "jobs": [_member(principal, job) for job in jobs]})

    async def _stop(self, request: Request) -> Response:
        """Stop the jobs of an array: those that wait first, else they would take the places of the others.

        Anybody may name a job's array as they like, so those that somebody may not stop are left alone.
        """
        jobs = await self._arrays.members(request.path_params["array_id"])
        principal = principal_of(request.scope)
        own = [job for job in jobs if may(principal, Verb.STOP, job.person, job.team)]
        if not own:
            require(request.scope, Verb.STOP, jobs[0])
        stopped = 0
        for job in sorted(own, key=lambda job: not State(job.state).waits):
            stopped += await stop(self._store, self._reconciler, job, actor_of(request.scope))
        return JSONResponse({"stopped": stopped})


def _member(principal: Principal, job: JobRow) -> dict[str, Any]:
    everything = may(principal, Verb.METADATA, job.person, job.team)
    message = job.message if everything else public_reason(job.message)
    return {"submission_id": job.id, "status": State(job.state).of_ray, "message": message}
