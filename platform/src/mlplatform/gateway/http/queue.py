"""Route that returns the waiting jobs in their order, each with the reasons why it waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.contract import QUEUE_ENTRIES
from mlplatform.scheduling.forecast import forecast
from mlplatform.scheduling.plan import queue
from mlplatform.scheduling.queue import Say, View, WaitingJob
from mlplatform.scheduling.resources import describe
from mlplatform.scheduling.room import asked

_MOST_FORECAST = 500
"""Waiting jobs up to which latest starts are computed: up to 200 plans, and planning 10,000 jobs takes 50 ms."""


def routes(latest: Callable[[], View | None]) -> list[Route]:
    """Return the route `GET /platform/queue`; errors are plain text.

    Args:
        latest: returns what the planner was last given, a second ago unless Ray does not answer; None if no job waits.
    """

    async def get(request: Request) -> Response:
        """Respond with the jobs that wait for resources; `job` selects one of them."""
        view = latest()
        wanted = request.query_params.get("job")
        says = await anyio.to_thread.run_sync(_explained, view, wanted) if view else []
        jobs = {job.id: job for job in view.waiting} if view else {}
        found = [say for say in says if wanted is None or say.job == wanted]
        entries = [_entry(jobs[say.job], say) for say in found[:QUEUE_ENTRIES]]
        return JSONResponse({"at": _time(view.now) if view else None, "waiting": len(says), "entries": entries})

    return [Route("/platform/queue", get, methods=["GET"])]


def _explained(view: View, wanted: str | None) -> list[Say]:
    """Return the explanations for all jobs; if one is wanted, with the latest starts that the limits promise."""
    few = len(view.waiting) <= _MOST_FORECAST
    latest = forecast(view) if few and any(job.id == wanted for job in view.waiting) else {}
    return queue(view, {job: start for job, start in latest.items() if start is not None})


def _entry(job: WaitingJob, say: Say) -> dict[str, Any]:
    gpus, cpus = asked(job.request)
    amounts = {name: value for name, value in {"GPU": gpus, "CPU": cpus}.items() if value}
    return {
        "job": job.id,
        "person": job.person,
        "team": job.team,
        "place": say.place,
        "requests": describe(amounts) or "nothing",
        "arrived": _time(job.arrived),
        "latest_start": None if say.latest_start is None else _time(say.latest_start),
        "reasons": [{"rule": reason.rule, "text": reason.text} for reason in say.reasons],
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
