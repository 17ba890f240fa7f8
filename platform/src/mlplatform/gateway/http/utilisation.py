"""Use of nodes, GPUs and running jobs: the cached source of these figures, and the route that returns them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.errors import UnreachableError
from mlplatform.gateway.control.reconciler import Reconciler
from mlplatform.gateway.http.auth import principal_of
from mlplatform.gateway.http.job_views import shown_to
from mlplatform.gateway.jobs.overview import JobOverview, ShownJob, ShownJobs
from mlplatform.gateway.upstream.ray import ClusterSnapshot, RayHead
from mlplatform.scheduling.utilisation import GpuUse, JobUse, Utilisation, utilisation_in

_FRESH_SECONDS = 2.0
"""Ray's dashboard caches its own answers as long."""

_RAY_SECONDS = 3.0
"""Timeout of Ray's answers."""


class UtilisationSource:
    """Source of what the nodes' agents measure, requested from the head once for everyone who looks.

    Ray 2.60 returns the use of processes for one node per request.
    """

    def __init__(self, head: RayHead) -> None:
        self._head = head
        self._last = Utilisation((), (), ())
        self._read = float("-inf")
        self._lock = asyncio.Lock()

    async def of(self, cluster: ClusterSnapshot) -> Utilisation:
        """Return the use of a cluster's nodes, at most two seconds older than Ray's; partly empty without answers."""
        async with self._lock:
            if time.monotonic() - self._read > _FRESH_SECONDS:
                details = await asyncio.gather(*(self._details(node_id) for node_id in cluster.alive))
                self._last = utilisation_in(cluster.nodes, details, cluster.jobs.values())
                self._read = time.monotonic()
            return self._last

    async def _details(self, node_id: str) -> Mapping[str, Any]:
        with suppress(UnreachableError, TimeoutError):
            async with asyncio.timeout(_RAY_SECONDS):
                return await self._head.node_details(node_id)
        return {}


def routes(jobs: JobOverview, reconciler: Reconciler, source: UtilisationSource) -> list[Route]:
    """Return the route `GET /platform/utilisation`; errors are plain text."""

    async def get(request: Request) -> Response:
        """Respond with the use of nodes, GPUs and the running jobs that the front page shows."""
        shown, use = await asyncio.gather(jobs.read(), _use(reconciler, source))
        return JSONResponse(_answer(shown_to(principal_of(request.scope), shown), use))

    return [Route("/platform/utilisation", get, methods=["GET"])]


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
        "nodes": [asdict(node) for node in use.nodes],
        "gpus": [asdict(gpu) for gpu in use.gpus],
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
