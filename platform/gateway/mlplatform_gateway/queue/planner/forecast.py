"""Latest starts of waiting jobs: the planner, run forward by the limits of the jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from mlplatform_gateway.queue.planner.plan import plan
from mlplatform_gateway.queue.planner.queue import Start, View, WaitingJob
from mlplatform_gateway.queue.planner.room import Room
from mlplatform_gateway.queue.planner.state import execute, with_free

MOST_PLANS = 200
"""Plans per forecast; a start that would need more is unknown."""


def forecast(view: View) -> dict[str, float | None]:
    """Return by job id the latest time at which each waiting job starts; None if it is unknown.

    Running jobs are taken to run up to their limits, and to leave as late as they may. The times hold if no job that
    precedes the waiting one arrives or is restarted. There is none where a job without a limit has to end first.
    """
    starts: dict[str, float | None] = {job.id: None for job in view.waiting}
    limits = {job.id: job.limit_s for job in view.waiting}
    for _ in range(MOST_PLANS):
        actions = plan(view)
        for action in actions:
            if isinstance(action, Start) and starts.get(action.job, 0.0) is None:
                starts[action.job] = view.now
        view = execute(view, actions)
        later = min((time for time in _events(view) if time > view.now), default=math.inf)
        if later == math.inf or not any(starts.get(job.id, 0.0) is None for job in view.waiting):
            break
        view = _advance(view, later, limits)
    return starts


def _events(view: View) -> Iterator[float]:
    """Yield the times at which the plan may change."""
    for job in view.running:
        if job.notice is not None:
            yield job.notice.deadline + view.rules.hold_back_s
        elif job.ends_by is not None:
            yield job.ends_by
    for waiting in view.waiting:
        yield waiting.since + view.rules.overdue_s


def _advance(view: View, now: float, limits: dict[str, float | None]) -> View:
    """Return the view at a later time, at which those have left that were preempted."""
    left = [job for job in view.running if job.notice and job.notice.deadline + view.rules.hold_back_s <= now]
    free = Room(view.nodes, {node.name: node.free for node in view.nodes})
    back = []
    for job in left:
        free.give(job.placement)
        if job.notice and job.notice.claimant:
            limit = limits.get(job.id, None if job.ends_by is None else job.ends_by - job.started)
            again = (job.id, job.sequence, job.team, job.person, job.job_class, job.request, now, limit)
            back.append(WaitingJob(*again, group=job.group))
    return replace(
        view,
        now=now,
        nodes=with_free(view.nodes, free),
        waiting=(*view.waiting, *back),
        running=tuple(job for job in view.running if job not in left),
    )
