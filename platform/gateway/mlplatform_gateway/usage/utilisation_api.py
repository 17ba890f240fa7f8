"""Route that returns the use of nodes, GPUs and running jobs."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter

from mlplatform.api import cluster as api
from mlplatform_gateway.http.access import User
from mlplatform_gateway.jobs.overview import JobOverview
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.views import hide_from
from mlplatform_gateway.ray.cluster import LISTING_SECONDS, Cluster
from mlplatform_gateway.ray.utilisation import JobUse, Utilisation, UtilisationSource


def routes(jobs: JobOverview, cluster: Cluster, source: UtilisationSource) -> APIRouter:
    """Return the route `GET /platform/utilisation`."""
    router = APIRouter()

    @router.get("/platform/utilisation", response_model=api.Utilisation)
    async def get(principal: User) -> dict[str, Any]:
        """Use of nodes, GPUs and the running jobs that the front page shows, as Ray measures it every 5 s."""
        shown, listed = await asyncio.gather(jobs.read(), cluster.look(LISTING_SECONDS))
        hide_from(principal, shown)
        use = await source.of(listed)
        measured = {job.job_id: job for job in use.jobs}
        return {
            "nodes": use.nodes,
            "gpus": use.gpus,
            "jobs": [_job(job, measured.get(job.id), use) for job in shown.running],
            "running": sum(shown.counts.get(state, 0) for state in ("STARTING", "RUNNING")),
        }

    return router


def _job(job: JobRow, measured: JobUse | None, use: Utilisation) -> api.JobUse:
    return api.JobUse(
        id=job.id,
        user=job.user,
        command=job.entrypoint,
        cpus=measured.cpus if measured else None,
        memory=measured.memory if measured else None,
        gpus=[
            api.HeldGpu(node=gpu.node, index=gpu.index, amount=gpu.holders[job.id], percent=gpu.percent)
            for gpu in use.gpus
            if job.id in gpu.holders
        ],
    )
