"""Route that returns the use of nodes, GPUs and running jobs."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.gateway.control.reconciler import LISTING_SECONDS, Reconciler
from mlplatform.gateway.http.auth import principal_of
from mlplatform.gateway.http.job_views import hide_from
from mlplatform.gateway.jobs.overview import JobOverview, ShownJobs
from mlplatform.gateway.jobs.schema import JobRow
from mlplatform.gateway.upstream.utilisation import GpuUse, JobUse, Utilisation, UtilisationSource


def routes(jobs: JobOverview, reconciler: Reconciler, source: UtilisationSource) -> list[Route]:
    """Return the route `GET /platform/utilisation`; errors are plain text."""

    async def get(request: Request) -> Response:
        """Respond with the use of nodes, GPUs and the running jobs that the front page shows."""
        shown, cluster = await asyncio.gather(jobs.read(), reconciler.look(LISTING_SECONDS))
        hide_from(principal_of(request.scope), shown)
        return JSONResponse(_answer(shown, await source.of(cluster)))

    return [Route("/platform/utilisation", get, methods=["GET"])]


def _answer(shown: ShownJobs, use: Utilisation) -> dict[str, Any]:
    measured = {job.job_id: job for job in use.jobs}
    return {
        "nodes": [asdict(node) for node in use.nodes],
        "gpus": [asdict(gpu) for gpu in use.gpus],
        "jobs": [_job(job, measured.get(job.id), use) for job in shown.running],
        "running": sum(shown.counts.get(state, 0) for state in ("STARTING", "RUNNING")),
    }


def _job(job: JobRow, measured: JobUse | None, use: Utilisation) -> dict[str, Any]:
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
