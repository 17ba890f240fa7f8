"""The waiting jobs in their order, each with the reasons why it waits: for the front page, and as a route."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.contract import QUEUE_ENTRIES
from mlplatform.scheduling.plan import forecast, queue
from mlplatform.scheduling.queue import Explain, View, WaitingJob
from mlplatform.scheduling.resources import describe

_REST = 10.0
"""Multiple of the CPU time that explanations took, after which newer ones are computed. With 10,000 waiting jobs they
take 0.3 s, and the planner is given a new view twice a second."""

_MOST_FORECAST = 500
"""Waiting jobs up to which latest starts are computed: up to 200 plans, and planning 10,000 jobs takes 50 ms."""


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


def routes(explanations: Explanations) -> list[Route]:
    """Return the route `GET /platform/queue`; errors are plain text."""

    async def get(request: Request) -> Response:
        """Respond with the jobs that wait for resources; `job` selects one of them."""
        found = await explanations.read()
        wanted = request.query_params.get("job")
        says = {place: say for place, say in enumerate(found.says, 1) if wanted is None or say.job == wanted}
        if wanted in found.jobs and found.view and len(found.jobs) <= _MOST_FORECAST:
            latest = await anyio.to_thread.run_sync(forecast, found.view)
            says = {place: replace(say, latest_start=latest.get(say.job)) for place, say in says.items()}
        shown = islice(says.items(), QUEUE_ENTRIES)
        entries = [_entry(found.jobs[say.job], place, say) for place, say in shown]
        at = _time(found.view.now) if found.view else None
        return JSONResponse({"at": at, "waiting": len(found.says), "entries": entries})

    return [Route("/platform/queue", get, methods=["GET"])]


def requests(job: WaitingJob) -> str:
    """Return the GPUs and CPUs that a job requests, those of its workers included, for people."""
    gpus, cpus = job.request.sums
    amounts = {name: value for name, value in {"GPU": gpus, "CPU": cpus}.items() if value}
    return describe(amounts) or "nothing"


def _entry(job: WaitingJob, place: int, say: Explain) -> dict[str, Any]:
    return {
        "job": job.id,
        "person": job.person,
        "team": job.team,
        "place": place,
        "requests": requests(job),
        "since": _time(job.since),
        "latest_start": None if say.latest_start is None else _time(say.latest_start),
        "reasons": [{"rule": reason.rule, "text": reason.text} for reason in say.reasons],
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
