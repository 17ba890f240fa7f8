"""Route that resumes a job after its end."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Depends, Request

from mlplatform.api.jobs import Changes, Resumed
from mlplatform_gateway.errors import NotResumableError
from mlplatform_gateway.http.access import of_job
from mlplatform_gateway.http.auth import actor_of, principal_of
from mlplatform_gateway.http.description import errors
from mlplatform_gateway.http.request_body import JsonBody
from mlplatform_gateway.jobs.admission import Admission
from mlplatform_gateway.jobs.containment import unless_log_unavailable
from mlplatform_gateway.jobs.ending import has_checkpoint
from mlplatform_gateway.jobs.loop import Reconciler
from mlplatform_gateway.jobs.resuming import Resumption, check_resumable
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.views import check_team
from mlplatform_gateway.packages.store import Packages, package_names
from mlplatform_gateway.people.rights import Verb

_Ended = Annotated[JobRow, of_job(Verb.RESUME)]
_Changes = Annotated[Changes, Depends(JsonBody(Changes, 4 << 10, empty=b"{}"))]


def routes(services: Services, reconciler: Reconciler, admission: Admission) -> APIRouter:
    """Return the route `POST /platform/jobs/{job_id}/resume`."""
    router, resumption = APIRouter(), Resumption(services.store.engine)

    @router.post("/platform/jobs/{job_id}/resume", responses=errors(404, 409, 422, 429, 507))
    async def resume(request: Request, job: _Ended, changes: _Changes) -> Resumed:
        """Continue a job that was stopped or has failed, for its owner, leads of its team and administrators.

        The same job and run continue with the next attempt, from the last checkpoint if there is one, behind the jobs
        that wait already. Allowed restarts are counted from the beginning.
        """
        principal = principal_of(request.scope)
        check_team(principal, job)
        check_resumable(job)
        await admission.check(job)
        await _check_packages(services.packages, job)
        # The runs of the ended job are closed first, else the run of the resumed one would be.
        await reconciler.settle(job)
        message = await _message(job, principal.person)
        resumed = await resumption.resume(job.id, message, actor_of(request.scope), changes.limit)
        await unless_log_unavailable(services.logs.reopen(job.id, message))
        reconciler.wake()
        return Resumed(submission_id=resumed.id, limit_s=resumed.limit_s, message=message)

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
