"""Room that is kept for a job which does not fit, as EASY backfill does (Lifka 1995).

Later jobs may start only if they end before it is needed, or fit beside it. The time is computed from the limits of the
running jobs. If one of the jobs that must end first has no limit, the time is unknown; room is then kept for overdue
jobs only, and nothing else starts on the nodes that were chosen for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlplatform_gateway.queue.planner.queue import RunningJob, WaitingJob
from mlplatform_gateway.queue.planner.room import Room
from mlplatform_gateway.queue.planner.state import State


@dataclass(frozen=True)
class Reservation:
    """Room that is kept for a job.

    Attributes:
        job: the waiting job.
        overdue: whether it has waited for too long.
        time: time at which it starts at the latest; infinity if unknown.
        beside: room that is left beside it at that time.
    """

    job: WaitingJob
    overdue: bool
    time: float
    beside: Room

    def outlasts(self, job: WaitingJob, state: State) -> bool:
        """Return whether a job that starts now is gone when the room is needed."""
        return job.limit_s is not None and state.now + job.limit_s + state.rules.grace_s <= self.time < math.inf


def reserve(job: WaitingJob, state: State, free: Room) -> Reservation | None:
    """Return the room to keep for a job within its share that fits on the empty nodes.

    Without a known start time, room is kept only for an overdue job.

    Args:
        job: the waiting job.
        state: what is known.
        free: what is free by our own accounts, less what other jobs are promised.
    """
    overdue = state.is_overdue(job)
    # Among jobs without limits, the oldest count as the first to end: new ones are never older, so the nodes that are
    # chosen remain the same from plan to plan.
    ends = sorted((_end(one, state), one.started, one.sequence, one.placement) for one in state.running.values())
    known = [(end, placement) for end, _, _, placement in ends if overdue or end < math.inf]
    beside, time, left = free.copy(), -math.inf, 0
    # With all that leaves by then: what a plan starts until that time has left, also if a later plan finds it running.
    while left < len(known) and (known[left][0] <= time < math.inf or beside.place(job.request) is None):
        time = max(time, known[left][0])
        beside.give(known[left][1])
        left += 1
    placement = beside.place(job.request)
    if placement is None:
        return None
    beside.take(placement)
    return Reservation(job, overdue, time, beside)


def _end(job: RunningJob, state: State) -> float:
    """Return the latest time at which a running job leaves; infinity if it has no limit, or is stuck."""
    if job.notice is not None:
        return job.notice.deadline if state.is_leaving(job) else math.inf
    return math.inf if job.ends_by is None else max(state.now, job.ends_by) + state.rules.grace_s
