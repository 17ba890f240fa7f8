"""Route that returns the use of nodes, GPUs and running jobs."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter

from mlplatform.api import cluster as api
from mlplatform.errors import UnreachableError
from mlplatform.gateway.control.reconciler import Reconciler
from mlplatform.gateway.http.access import User
from mlplatform.gateway.http.job_views import shown_to
from mlplatform.gateway.http.routing import router
from mlplatform.gateway.jobs.overview import JobOverview, ShownJob, ShownJobs
from mlplatform.gateway.upstream.utilisation import UtilisationSource
from mlplatform.scheduling.utilisation import GpuUse, JobUse, Utilisation

_RAY_SECONDS = 3.0
"""Timeout of Ray's answers."""


def of_utilisation(jobs: JobOverview, reconciler: Reconciler, source: UtilisationSource) -> APIRouter:
    """Return the route `GET /platform/utilisation`."""
    routes = router()

    @routes.get("/platform/utilisation", response_model=api.Utilisation)
    async def get(principal: User) -> dict[str, Any]:
        """Use of nodes, GPUs and running jobs, as Ray measures it every 5 s."""
        shown, use = await asyncio.gather(jobs.read(), _use(reconciler, source))
        return _answer(shown_to(principal, shown), use)

    return routes


async def _use(reconciler: Reconciler, source: UtilisationSource) -> Utilisation:
    try:
        async with asyncio.timeout(_RAY_SECONDS):
            cluster = await reconciler.look()
    except TimeoutError as error:
        raise UnreachableError(f"Ray's head has not listed its nodes within {_RAY_SECONDS:g} s.") from error
    return await source.of(cluster)


def _answer(shown: ShownJobs, use: Utilisation) -> dict[str, Any]:
    measured = {job.job_id: job for job in use.jobs}
    return {
        "nodes": use.nodes,
        "gpus": use.gpus,
        "jobs": [_job(job, measured.get(job.id), use) for job in shown.running],
        "running": sum(shown.counts.get(state, 0) for state in ("STARTING", "RUNNING")),
    }


def _job(job: ShownJob, measured: JobUse | None, use: Utilisation) -> dict[str, Any]:
    return {
        "id": job.id,
        "user": job.user,
        "command": job.entrypoint,
        "cpus": measured and measured.cpus,
        "memory": measured and measured.memory,
        "gpus": [_held(gpu, job.id) for gpu in use.gpus if job.id in gpu.holders],
    }


def _held(gpu: GpuUse, job_id: str) -> dict[str, Any]:
    return {"node": gpu.node, "index": gpu.index, "amount": gpu.holders[job_id], "percent": gpu.percent}
