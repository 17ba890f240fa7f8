"""Route that resumes a job after its end."""

from __future__ import annotations

import anyio.to_thread
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.gateway.control.admission import Admission
from mlplatform.gateway.control.containment import unless_log_unavailable
from mlplatform.gateway.control.ending import has_checkpoint
from mlplatform.gateway.control.reconciler import Reconciler
from mlplatform.gateway.errors import NotResumableError
from mlplatform.gateway.http import request_body
from mlplatform.gateway.http.access import require
from mlplatform.gateway.http.auth import actor_of, principal_of
from mlplatform.gateway.http.job_views import check_team
from mlplatform.gateway.jobs.packages import Packages, package_names
from mlplatform.gateway.jobs.resuming import Resumption, check_resumable
from mlplatform.gateway.jobs.schema import JobRow
from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.jobs.submission import TimeLimit
from mlplatform.gateway.logs.store import JobLogs
from mlplatform.gateway.people.rights import Verb

_BODY_BYTES = 4 << 10


class _Changes(BaseModel):
    """Options of the resumed job; those that are not sent keep their values."""

    model_config = ConfigDict(extra="forbid")

    limit: TimeLimit | None = None


class ResumeRoutes:
    """The route `POST /platform/jobs/{job_id}/resume`; errors are plain text."""

    def __init__(
        self, store: JobStore, reconciler: Reconciler, logs: JobLogs, packages: Packages, admission: Admission
    ) -> None:
        self._store = store
        self._resumption = Resumption(store.engine)
        self._reconciler = reconciler
        self._logs = logs
        self._packages = packages
        self._admission = admission

    def routes(self) -> list[Route]:
        """Return the route."""
        return [Route("/platform/jobs/{job_id}/resume", self._resume, methods=["POST"])]

    async def _resume(self, request: Request) -> Response:
        """Let an ended job wait for its next attempt, and respond with what that does."""
        changes = await request_body.parsed(request.receive, _Changes, _BODY_BYTES, empty=b"{}")
        job = await self._store.get(request.path_params["job_id"])
        require(request.scope, Verb.RESUME, job)
        check_team(principal_of(request.scope), job)
        check_resumable(job)
        await self._admission.check(job)
        await self._check_packages(job)
        # The runs of the ended job are closed first, else the run of the resumed one would be.
        await self._reconciler.settle(job)
        message = await _message(job, principal_of(request.scope).person)
        job = await self._resumption.resume(job.id, message, actor_of(request.scope), changes.limit)
        await unless_log_unavailable(self._logs.reopen(job.id, message))
        self._reconciler.wake()
        return JSONResponse({"submission_id": job.id, "limit_s": job.limit_s, "message": message})

    async def _check_packages(self, job: JobRow) -> None:
        for name in package_names(job.runtime_env):
            if not await self._packages.exists(name):
                raise NotResumableError(
                    f"The files of job {job.id}, package {name}, were removed since it ended; submit it again."
                )


async def _message(job: JobRow, person: str) -> str:
    resumes = await anyio.to_thread.run_sync(has_checkpoint, job.id)
    where = "continues from its last checkpoint" if resumes else "starts from the beginning"
    number = len(job.attempts) + 1
    by = f" by {person}" if person else ""
    return f"The job was resumed{by}: attempt {number} {where} as soon as there is room."
