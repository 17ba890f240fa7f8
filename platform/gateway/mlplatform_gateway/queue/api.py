"""The waiting jobs in their order, with the reasons why they wait, and the check of a request before a submission."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Depends, Query
from pydantic.json_schema import SkipJsonSchema

from mlplatform.api import queue as api
from mlplatform.api.base import MOST_ENTRIES
from mlplatform.api.cluster import Capacity, CapacityRequest
from mlplatform.capacity.resources import Request, Resources, Shortage, WorkerGroup, describe
from mlplatform.errors import UnreachableError
from mlplatform_gateway.audit.store import SHARED_TOKEN
from mlplatform_gateway.http.access import USERS
from mlplatform_gateway.http.description import errors
from mlplatform_gateway.http.request_body import JsonBody
from mlplatform_gateway.jobs.admission import Admission
from mlplatform_gateway.jobs.details import public_reason
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.submission import request_of
from mlplatform_gateway.people.store import DEFAULT_TEAM
from mlplatform_gateway.queue.planner.plan import forecast, queue
from mlplatform_gateway.queue.planner.queue import Explain, View, WaitingJob
from mlplatform_gateway.ray.cluster import LISTING_SECONDS, Cluster
from mlplatform_gateway.ray.head import RayHead
from mlplatform_gateway.ray.listings import users_of

_REST = 10.0
"""Multiple of the CPU time that explanations took, after which newer ones are computed. With 10,000 waiting jobs they
take 0.3 s, and the planner is given a new view twice a second."""

_MOST_FORECAST = 500
"""Waiting jobs up to which latest starts are computed: up to 200 plans, and planning 10,000 jobs takes 50 ms."""

_Job = Annotated[
    str | SkipJsonSchema[None], Query(description="Only this job; no entry if it does not wait for resources.")
]
_Capacity = Depends(JsonBody(CapacityRequest, 64 << 10, "request fewer kinds of resources"))


@dataclass(frozen=True)
class Explained:
    """Waiting jobs of one view, explained.

    Attributes:
        view: what the planner was given; None if no job waits for resources.
        says: an explanation per job that keeps waiting, in their order.
        jobs: the waiting jobs by id.
    """

    view: View | None = None
    says: Sequence[Explain] = ()
    jobs: Mapping[str, WaitingJob] = field(default_factory=dict)


class Explanations:
    """Explanations of the waiting jobs, computed once per view for everyone who looks.

    Args:
        latest: returns what the planner was last given, a second ago unless Ray does not answer; None if no job waits.
    """

    def __init__(self, latest: Callable[[], View | None]) -> None:
        self._latest = latest
        self._last = Explained()
        self._rests_until = float("-inf")
        self._lock = asyncio.Lock()

    async def read(self) -> Explained:
        """Return the explanations for the latest view; if many jobs wait, they may be a few seconds old."""
        async with self._lock:
            view = self._latest()
            if view is None:
                return Explained()
            # Views never change, so the same one has the same explanations.
            if view is not self._last.view and time.monotonic() >= self._rests_until:
                says, seconds = await anyio.to_thread.run_sync(_explain, view)
                self._last = Explained(view, says, {job.id: job for job in view.waiting})
                self._rests_until = time.monotonic() + _REST * seconds
            return self._last


def _explain(view: View) -> tuple[list[Explain], float]:
    """Return the explanations, and the CPU time that they took, in seconds."""
    began = time.thread_time()
    says = queue(view)
    return says, time.thread_time() - began


def routes(explanations: Explanations, later: Callable[[str | None], Awaitable[Sequence[JobRow]]]) -> APIRouter:
    """Return the route `GET /platform/queue`.

    Args:
        later: returns held jobs and schedules, or one of them, by its id.
    """
    router = APIRouter()

    # Everybody sees owner, shape, state and reason of every job.
    @router.get("/platform/queue", dependencies=[USERS])
    async def get(job: _Job = None) -> api.Queue:
        """Jobs that wait for resources, in the order in which they are considered, with the reasons.

        Jobs that start after others, and schedules, follow.
        """
        found = await explanations.read()
        says = {place: say for place, say in enumerate(found.says, 1) if job is None or say.job == job}
        if job in found.jobs and found.view and len(found.jobs) <= _MOST_FORECAST:
            latest = await anyio.to_thread.run_sync(forecast, found.view)
            says = {place: replace(say, latest_start=latest.get(say.job)) for place, say in says.items()}
        shown = islice(says.items(), MOST_ENTRIES)
        entries = [_entry(found.jobs[say.job], place, say) for place, say in shown]
        entries += map(_later, await later(job))
        return api.Queue(at=_time(found.view.now) if found.view else None, waiting=len(found.says), entries=entries)

    return router


def requests(request: Request) -> str:
    """Return the GPUs and CPUs of a request, those of workers included, for people."""
    gpus, cpus = request.sums
    amounts = {name: value for name, value in {"GPU": gpus, "CPU": cpus}.items() if value}
    return describe(amounts) or "nothing"


def _entry(job: WaitingJob, place: int, say: Explain) -> api.QueueEntry:
    return api.QueueEntry(
        job=job.id,
        person=job.person,
        team=job.team,
        place=place,
        requests=requests(job.request),
        since=_time(job.since),
        latest_start=None if say.latest_start is None else _time(say.latest_start),
        reasons=[api.Reason.model_validate(reason) for reason in say.reasons],
    )


def _later(job: JobRow) -> api.QueueEntry:
    rule = "schedule" if job.schedule else "after"
    return api.QueueEntry(
        job=job.id,
        person=job.person or SHARED_TOKEN,
        team=job.team or DEFAULT_TEAM,
        place=None,
        requests=requests(request_of(job)),
        since=job.created,
        latest_start=None,
        next=job.due,
        reasons=[api.Reason(rule=rule, text=public_reason(job.message))],
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)


def capacity_routes(admission: Admission, cluster: Cluster, head: RayHead) -> APIRouter:
    """Return the route `POST /platform/capacity`."""
    router = APIRouter()

    @router.post("/platform/capacity", dependencies=[USERS], responses=errors(422))
    async def post(sent: Annotated[CapacityRequest, _Capacity]) -> Capacity:
        """Check whether the nodes alive or recently seen can hold a job; nothing is stored."""
        workers = WorkerGroup(**sent.workers.model_dump()) if sent.workers else None
        asked = Request(Resources(**sent.entrypoint.model_dump()), workers, sent.labels)
        shortage = await admission.shortage(asked)
        if shortage is not None:
            shortage = await _with_users(shortage, asked, cluster, head)
        return Capacity.model_validate({"shortage": shortage})

    return router


async def _with_users(shortage: Shortage, asked: Request, cluster: Cluster, head: RayHead) -> Shortage:
    """Add the jobs that hold some of the requested resources, if the head answers."""
    kinds = {*asked.entrypoint.amounts(), *(asked.workers.amounts() if asked.workers else {})}
    with suppress(UnreachableError, TimeoutError):
        async with asyncio.timeout(LISTING_SECONDS):
            listed, actors = await asyncio.gather(cluster.look(), head.living_actors())
        return replace(shortage, users=users_of(kinds, actors, listed.jobs.values()))
    return shortage
