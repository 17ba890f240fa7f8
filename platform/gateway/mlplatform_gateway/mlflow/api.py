"""Routes for MLflow: changes that its server reports, digests of registered models, and the results of jobs."""

from __future__ import annotations

import asyncio
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Depends, Query

from mlplatform.api.base import Count
from mlplatform.api.results import Results
from mlplatform.api.storage import Digests, MlflowChange
from mlplatform.contract import MLFLOW_CHANGES, MODEL_DIGESTS
from mlplatform_gateway.audit.store import UNKNOWN, Actor, AuditLog
from mlplatform_gateway.errors import RequestError
from mlplatform_gateway.http.access import OF_MLFLOW, USERS, of_job
from mlplatform_gateway.http.description import errors
from mlplatform_gateway.http.request_body import JsonBody
from mlplatform_gateway.jobs.housekeeping import JobRuns
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.mlflow.digests import ModelDigests
from mlplatform_gateway.mlflow.rest import AsyncMlflowRest
from mlplatform_gateway.mlflow.results import checkpoints, read_runs
from mlplatform_gateway.people.rights import Verb

_KIND = "mlflow"
"""Kind of the credential in the audit log: an account of MLflow."""

_Job = Annotated[JobRow, of_job(Verb.METADATA)]
_Source = Annotated[str, Query(description="As MLflow has it.")]
_Created = Annotated[Count, Query(description="Time of registration, in milliseconds since 1970, as MLflow has it.")]


def routes(audit: AuditLog, digests: ModelDigests) -> APIRouter:
    """Return the routes for MLflow's server, and for clients that verify models."""
    router = APIRouter()

    @router.post(MLFLOW_CHANGES, dependencies=[OF_MLFLOW])
    async def change(
        made: Annotated[MlflowChange, Depends(JsonBody(MlflowChange, instead="send one change"))],
    ) -> dict[str, bool]:
        """Record a change at MLflow; for its server, with the password of the gateway's account there.

        Digests of new versions of models are recorded, too.
        """
        await audit.add(Actor(made.account or UNKNOWN, _KIND, made.address), made.method, made.path, after=made.values)
        digests.wake()
        return {"recorded": True}

    @router.get(MODEL_DIGESTS, dependencies=[USERS])
    async def get(source: _Source, created: _Created) -> Digests:
        """Digests of the files of a registered model's version."""
        if "\0" in source:
            raise RequestError(f"source is {source!r}, which contains NUL; send it as MLflow has it.")
        found = await digests.of(source, created)
        if found is None:
            digests.wake()
            return Digests(files=None, recorded=None)
        return Digests.model_validate(found)

    return router


def result_routes(runs: JobRuns, client: AsyncMlflowRest | None) -> APIRouter:
    """Return the route `GET /platform/jobs/{job_id}/results`; without MLflow, jobs have no runs."""
    router = APIRouter()
    # MLflow's clients and the threads are also those of the gateway's own work.
    few = asyncio.Semaphore(2)

    @router.get("/platform/jobs/{job_id}/results", responses=errors(404))
    async def get(job: _Job) -> Results:
        """Runs of a job at MLflow, with curves of their metrics and with models, and its checkpoints."""
        ids = [run.run_id for run in await runs.of(job.id)]
        async with few:
            folder, names = await anyio.to_thread.run_sync(checkpoints, job.id)
            return Results(runs=await read_runs(client, ids) if client else [], checkpoints=names, folder=folder)

    return router
