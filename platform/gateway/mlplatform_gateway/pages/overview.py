"""The front page's overview, gathered from the database, Ray's head and checks of the tools that have a page."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from mlplatform.api import overview as api
from mlplatform.api.cluster import GpuUse
from mlplatform.api.jobs import Links
from mlplatform.dev.environment import is_environment
from mlplatform.errors import UnreachableError
from mlplatform_gateway.jobs.details import HIDDEN, public_attempt, public_reason
from mlplatform_gateway.jobs.overview import SHOWN, JobOverview, ShownJobs
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.store import RUNNING_MESSAGE, now
from mlplatform_gateway.jobs.submission import request_of
from mlplatform_gateway.monitoring.disks import Disks
from mlplatform_gateway.monitoring.outages import Outages
from mlplatform_gateway.people.rights import Principal, Verb, allows, relation
from mlplatform_gateway.queue.api import Explained, Explanations, requests
from mlplatform_gateway.ray.cluster import LISTING_SECONDS, Cluster
from mlplatform_gateway.ray.head import RayHead
from mlplatform_gateway.ray.listings import Holding, holdings_in
from mlplatform_gateway.ray.recent import Load
from mlplatform_gateway.ray.utilisation import UtilisationSource, loads_in
from mlplatform_gateway.settings import Tool

FRESH_SECONDS = 1.0
"""Age up to which what was gathered is shown to others."""

_CHECK_SECONDS = 5.0
"""Interval between two checks of the tools while somebody looks at the page."""

_CHARACTERS = 300
"""Of a command or message: each change of a job sends the lists to everybody who looks."""

_OLD_SECONDS = 10.0
"""Age at which the queue is shown with its time, because no job starts."""


@dataclass(frozen=True)
class _View:
    """The overview, before it is made for one reader; `down` has the titles of the tools that do not answer."""

    jobs: ShownJobs
    queue: Mapping[str, api.QueuePlace]
    queue_time: datetime | None
    nodes: list[api.Node]
    loads: dict[str, api.Load]
    curves: dict[str, api.LoadCurve]
    problems: list[str]
    down: frozenset[str]


class FrontPage:
    """Source of overviews; what they have in common is gathered once for everybody who looks at that time."""

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
        self._checked = self._read = float("-inf")
        self._last: _View | None = None
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        """Close the connections."""
        await self._outages.close()

    async def full_disk(self) -> str:
        """Return the reason why the database may not answer; empty if no disk is full."""
        return await self._disks.problem(full=True)

    async def read(self, principal: Principal, address: Callable[[Tool], str]) -> api.Overview:
        """Return the overview as a principal may see it; `address` returns that of a tool for the principal's browser.

        Raises:
            UnreachableError: the database is unavailable.
        """
        view = await self._view()
        shown = (*view.jobs.running, *view.jobs.waiting, *view.jobs.ended)
        return api.Overview(
            you=principal.person,
            jobs=[_shown(job, view.queue.get(job.id), principal) for job in shown],
            counts=view.jobs.counts,
            nodes=view.nodes,
            loads=view.loads,
            curves=view.curves,
            tools=[
                api.Tool(title=tool.title, address=address(tool), healthy=tool.title not in view.down)
                for tool in self._tools
            ],
            problems=view.problems,
            queue_time=view.queue_time,
        )

    async def _view(self) -> _View:
        async with self._lock:
            if self._last is None or time.monotonic() - self._read > FRESH_SECONDS:
                (jobs, queue, at), (nodes, loads, problem), down, full = await asyncio.gather(
                    self._queue(), self._nodes(), self._down(), self._disks.problem()
                )
                users = {job.id: job.user for job in (*jobs.running, *jobs.waiting)}
                for share in (share for node in nodes for share in node.shares):
                    share.user = users.get(share.job, "")
                measured = {job.id: api.Load.model_validate(loads[job.id]) for job in jobs.running if job.id in loads}
                recent = {job_id: self._utilisation.recent.curve(job_id, time.time()) for job_id in measured}
                curves = {job_id: api.LoadCurve(**curve) for job_id, curve in recent.items() if curve}
                problems = [text for text in (full, problem) if text]
                self._last = _View(jobs, queue, at, nodes, measured, curves, problems, down)
                self._read = time.monotonic()
            return self._last

    async def _queue(self) -> tuple[ShownJobs, dict[str, api.QueuePlace], datetime | None]:
        """Return the jobs, those that wait for resources in their order, with what there is to say of these."""
        found = await self._explanations.read()
        jobs = await self._jobs.read({say.job for say in found.says[:SHOWN]})
        queue = _places(found)
        jobs.waiting.sort(key=lambda job: queue[job.id].place if job.id in queue else math.inf)
        at = datetime.fromtimestamp(found.view.now, UTC) if found.view else None
        old = at is not None and (now() - at).total_seconds() > _OLD_SECONDS
        return jobs, queue, at if old else None

    async def _nodes(self) -> tuple[list[api.Node], dict[str, Load], str]:
        try:
            async with asyncio.timeout(LISTING_SECONDS):
                cluster, actors = await asyncio.gather(self._cluster.look(), self._head.living_actors())
        except UnreachableError as error:
            return [], {}, str(error)
        except TimeoutError:
            return [], {}, f"Ray's head has not listed its nodes within {LISTING_SECONDS:g} s."
        held = holdings_in(actors, cluster.jobs.values(), cluster.names)
        use = await self._utilisation.of(cluster)
        measured = {node.name: node for node in use.nodes}
        # The head declares no CPUs: it runs no jobs.
        return (
            [
                api.Node(
                    name=node.name,
                    alive=node.alive,
                    cpus=node.total["CPU"],
                    cpus_reserved=node.total["CPU"] - node.free.get("CPU", 0),
                    memory_used=measured[node.name].memory_used if node.name in measured else None,
                    memory_total=measured[node.name].memory_total if node.name in measured else None,
                    shares=shares_of(node.name, node.total.get("GPU", 0), node.free.get("GPU", 0), held),
                    gpus=[GpuUse.model_validate(gpu) for gpu in use.gpus if gpu.node == node.name and gpu.memory_total],
                )
                for node in cluster.nodes
                if node.total.get("CPU")
            ],
            loads_in(use),
            "",
        )

    async def _down(self) -> frozenset[str]:
        if time.monotonic() - self._checked > _CHECK_SECONDS:
            await self._outages.probe()
            self._checked = time.monotonic()
        return frozenset(self._outages.now())


def shares_of(node: str, total: float, free: float, held: Sequence[Holding]) -> list[api.Share]:
    """Return the shares of a node's GPUs: each job's, then what is in use by an unknown job, then what is free."""
    here = [holding for holding in held if holding.node == node and holding.amounts.get("GPU", 0) > 0]
    shares = [api.Share(amount=holding.amounts["GPU"], job=holding.job_id) for holding in here]
    unknown = total - free - sum(share.amount for share in shares)
    # Ray's usage is a few seconds older than its list of actors.
    free = max(0.0, total - sum(share.amount for share in shares) - max(unknown, 0.0))
    shares += [api.Share(amount=round(unknown, 4))] if unknown > 1e-6 else []
    return [*shares, *([api.Share(amount=round(free, 4), free=True)] if free > 1e-6 else [])]


def _places(found: Explained) -> dict[str, api.QueuePlace]:
    return {
        say.job: api.QueuePlace(
            place=place, reasons=[reason.text for reason in say.reasons], latest_start=_next_minute(say.latest_start)
        )
        for place, say in enumerate(found.says, 1)
    }


def _next_minute(seconds: float | None) -> datetime | None:
    """Return a time in whole minutes: one that moves with every plan would send the jobs to all who look at them."""
    return None if seconds is None else datetime.fromtimestamp(math.ceil(seconds / 60) * 60, UTC)


def _shown(job: JobRow, place: api.QueuePlace | None, principal: Principal) -> api.ShownJob:
    """Return a job without what the reader may not see."""
    to_job, request = relation(principal, job.person, job.team), request_of(job)
    everything = allows(to_job, Verb.METADATA)
    message = "" if job.message == RUNNING_MESSAGE else job.message
    return api.ShownJob(
        id=job.id,
        user=job.user,
        team=job.team,
        relation=to_job,
        environment=is_environment(job.id, job.entrypoint),
        state=job.state,
        command=job.entrypoint[:_CHARACTERS] if everything else HIDDEN,
        message=message[:_CHARACTERS] if everything else public_reason(message),
        requests=requests(request),
        cpus=request.sums[1],
        created=job.created,
        ended=job.ended,
        links=Links.model_validate(job),
        stopping=job.stop_requested,
        attempt=public_attempt(job.last_attempt, everything) if job.last_attempt else None,
        queue=place,
    )
