"""Content of the front page, gathered from the database, Ray's head and checks of the tools that have a page."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from mlplatform.errors import UnreachableError
from mlplatform_gateway.jobs.overview import SHOWN, JobOverview, ShownJobs
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.monitoring.disks import Disks
from mlplatform_gateway.monitoring.outages import Outages
from mlplatform_gateway.queue.api import Explained, Explanations, requests
from mlplatform_gateway.queue.queueing import DEFAULT_TEAM
from mlplatform_gateway.ray.cluster import LISTING_SECONDS, Cluster
from mlplatform_gateway.ray.head import RayHead
from mlplatform_gateway.ray.listings import Holding, holdings_in
from mlplatform_gateway.ray.utilisation import GpuUse, UtilisationSource
from mlplatform_gateway.settings import Tool

_CHECK_SECONDS = 5.0
"""Interval between two checks of the tools while somebody looks at the page."""

_OLD_SECONDS = 10.0
"""Age at which the queue is shown with its time, because no job starts."""


@dataclass(frozen=True)
class Gpus:
    """Share of a node's GPUs that one job holds, or that nobody holds.

    Attributes:
        amount: number of GPUs; jobs may hold fractions.
        job_id: the holder; empty if they are free or if Ray does not tell.
        user: the holder's user.
        free: whether nobody holds them.
    """

    amount: float
    job_id: str = ""
    user: str = ""
    free: bool = False


@dataclass(frozen=True)
class NodeView:
    """A node with its CPUs and GPUs.

    Attributes:
        gpus: shares of its GPUs, by holder.
        measured: load of each GPU that its agent measures.
    """

    name: str
    alive: bool
    cpus: float
    cpus_used: float
    gpus: Sequence[Gpus] = ()
    measured: Sequence[GpuUse] = ()


@dataclass(frozen=True)
class QueuedView:
    """A waiting job's position in the queue, and why it waits.

    Attributes:
        place: from 1.
        team: empty if there are no teams.
        requests: GPUs and CPUs, those of workers included.
        reasons: a sentence per rule that keeps it waiting.
        latest_start: time by which it starts if all jobs keep to their limits; None if unknown.
    """

    place: int
    team: str
    requests: str
    reasons: Sequence[str]
    latest_start: datetime | None = None


@dataclass(frozen=True)
class View:
    """Everything that the page shows.

    Attributes:
        jobs: open jobs and those that ended last; of those that wait, first the queue in its order.
        nodes: nodes of the cluster; empty if Ray's head does not answer.
        problem: the reason why there are no nodes; empty if there are.
        tools: the stack's pages, and whether each service answers; without those that have no page, such as Postgres.
        disk_problem: the reason why new jobs are rejected; empty if they are not.
        queue: what there is to say of shown jobs that wait for resources, by id.
        queue_time: time for which the queue holds, if that is long ago; None otherwise.
    """

    jobs: ShownJobs
    nodes: Sequence[NodeView]
    problem: str
    tools: Sequence[tuple[Tool, bool]]
    disk_problem: str = ""
    queue: Mapping[str, QueuedView] = field(default_factory=dict)
    queue_time: datetime | None = None


class FrontPage:
    """Source of views."""

    def __init__(
        self,
        jobs: JobOverview,
        cluster: Cluster,
        head: RayHead,
        utilisation: UtilisationSource,
        tools: Sequence[Tool],
        disks: Disks,
        explanations: Explanations,
    ) -> None:
        self._jobs = jobs
        self._cluster = cluster
        self._head = head
        self._utilisation = utilisation
        self._tools = tools
        self._disks = disks
        self._explanations = explanations
        self._outages = Outages({tool.title: tool.health for tool in tools})
        self._checked = float("-inf")
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        """Close the connections."""
        await self._outages.close()

    async def full_disk(self) -> str:
        """Return the reason why the database may not answer; empty if no disk is full."""
        return await self._disks.problem(full=True)

    async def view(self) -> View:
        """Return the current view; raises UnreachableError while the database is unavailable."""
        (jobs, queue, at), (nodes, problem), tools, full = await asyncio.gather(
            self._queue(), self._nodes(), self._health(), self._disks.problem()
        )
        return View(jobs, _with_users(nodes, jobs), problem, tools, full, queue, at)

    async def _queue(self) -> tuple[ShownJobs, dict[str, QueuedView], datetime | None]:
        """Return the jobs, those that wait for resources in their order, with what there is to say of these."""
        found = await self._explanations.read()
        jobs = await self._jobs.read({say.job for say in found.says[:SHOWN]})
        queue = _queued(found, {job.id for job in jobs.waiting})
        waiting = sorted(jobs.waiting, key=lambda job: queue[job.id].place if job.id in queue else math.inf)
        at = datetime.fromtimestamp(found.view.now, UTC) if found.view else None
        old = at is not None and (now() - at).total_seconds() > _OLD_SECONDS
        return replace(jobs, waiting=waiting), queue, at if old else None

    async def _nodes(self) -> tuple[list[NodeView], str]:
        try:
            async with asyncio.timeout(LISTING_SECONDS):
                cluster, actors = await asyncio.gather(self._cluster.look(), self._head.living_actors())
        except UnreachableError as error:
            return [], str(error)
        except TimeoutError:
            return [], f"Ray's head has not listed its nodes within {LISTING_SECONDS:g} s."
        held = holdings_in(actors, cluster.jobs.values(), cluster.names)
        load = await self._utilisation.of(cluster)
        # The head declares no CPUs: it runs no jobs.
        return [
            NodeView(
                node.name,
                node.alive,
                node.total["CPU"],
                node.total["CPU"] - node.free.get("CPU", 0),
                gpus_of(node.name, node.total.get("GPU", 0), node.free.get("GPU", 0), held),
                [gpu for gpu in load.gpus if gpu.node == node.name and gpu.memory_total],
            )
            for node in cluster.nodes
            if node.total.get("CPU")
        ], ""

    async def _health(self) -> list[tuple[Tool, bool]]:
        async with self._lock:
            if time.monotonic() - self._checked > _CHECK_SECONDS:
                await self._outages.probe()
                self._checked = time.monotonic()
        down = self._outages.now()
        return [(tool, tool.title not in down) for tool in self._tools]


def gpus_of(node: str, total: float, free: float, held: Sequence[Holding]) -> list[Gpus]:
    """Return the shares of a node's GPUs: each job's, then what is in use by an unknown job, then what is free."""
    here = [holding for holding in held if holding.node == node and holding.amounts.get("GPU", 0) > 0]
    shares = [Gpus(holding.amounts["GPU"], holding.job_id) for holding in here]
    unknown = total - free - sum(share.amount for share in shares)
    # Ray's usage is a few seconds older than its list of actors.
    free = max(0.0, total - sum(share.amount for share in shares) - max(unknown, 0.0))
    shares += [Gpus(round(unknown, 4))] if unknown > 1e-6 else []
    return [*shares, *([Gpus(round(free, 4), free=True)] if free > 1e-6 else [])]


def _queued(found: Explained, shown: Collection[str]) -> dict[str, QueuedView]:
    """Return what is shown of each job of the queue that is shown."""
    has_teams = found.view is not None and any(name != DEFAULT_TEAM for name in found.view.teams)
    queued = {}
    for place, say in enumerate(found.says, 1):
        if say.job in shown:
            job = found.jobs[say.job]
            reasons = [reason.text for reason in say.reasons]
            team = job.team if has_teams else ""
            queued[say.job] = QueuedView(place, team, requests(job), reasons, _next_minute(say.latest_start))
    return queued


def _next_minute(seconds: float | None) -> datetime | None:
    """Return a time in whole minutes: one that moves with every plan would send the page to all who look at it."""
    return None if seconds is None else datetime.fromtimestamp(math.ceil(seconds / 60) * 60, UTC)


def _with_users(nodes: Sequence[NodeView], jobs: ShownJobs) -> list[NodeView]:
    users = {job.id: job.user for job in (*jobs.running, *jobs.waiting)}
    return [
        replace(node, gpus=[replace(share, user=users.get(share.job_id, "")) for share in node.gpus]) for node in nodes
    ]
