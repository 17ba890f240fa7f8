"""Routes with the sums of the ledger, and with the present use of nodes, GPUs and running jobs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query

from mlplatform.api import cluster as api
from mlplatform.api.base import MOST_ENTRIES
from mlplatform.api.usage import By, Report, Use, Window
from mlplatform_gateway.http.access import USERS, User
from mlplatform_gateway.jobs.overview import JobOverview
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.views import hide_from
from mlplatform_gateway.people.store import People
from mlplatform_gateway.ray.cluster import LISTING_SECONDS, Cluster
from mlplatform_gateway.ray.utilisation import JobUse, Utilisation, UtilisationSource
from mlplatform_gateway.usage.budgets import Budgets
from mlplatform_gateway.usage.report import UsageReader


def routes(usage: UsageReader, people: People, budgets: Budgets) -> APIRouter:
    """Return the route `GET /platform/usage`."""
    router = APIRouter()

    @router.get("/platform/usage", dependencies=[USERS], response_model_exclude_unset=True)
    async def get(window: Annotated[Window, Query()]) -> Report:
        """GPU and CPU time that people, teams or jobs have reserved in a time window, deleted jobs included.

        Reservations are clipped to the window; running attempts count until its end, which is at most the present time.
        An answer has 1,000 jobs at most.
        """
        # In whole seconds, so that a client that continues names the same window.
        now = int(datetime.now(UTC).timestamp())
        until = now if window.until is None else min(window.until, now)
        since = min(window.since, now)
        rows = await usage.read(window.by, _time(since), _time(until), window.after, MOST_ENTRIES)
        last = rows[-1].sequence if window.by is By.JOB and len(rows) == MOST_ENTRIES else None
        uses = [Use(**row._mapping) for row in rows]
        sentences = [str(budget) for budget in (await budgets.read(await people.teams(), _time(now))).values()]
        return Report(since=since, until=until, entries=uses, budgets=sentences, next=last)

    return router


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def utilisation_routes(jobs: JobOverview, cluster: Cluster, source: UtilisationSource) -> APIRouter:
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
