"""Room that is kept for a job which does not fit, as EASY backfill does (Lifka 1995).

Later jobs may start only if they end before it is needed, or fit beside it. The time is computed from the limits of the
running jobs. Where one that has to end first has no limit, there is no such time, and room is kept only for a job that
is overdue: nothing then starts on the nodes that were chosen for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlplatform.scheduling.queue import Placement, WaitingJob
from mlplatform.scheduling.room import Room


@dataclass(frozen=True)
class Leaving:
    """Resources that become free.

    Attributes:
        time: at the latest; infinity if unknown.
        order: decides among equal times, the smallest first.
    """

    time: float
    order: tuple[float, int]
    placement: Placement


@dataclass(frozen=True)
class Reservation:
    """Room that is kept for a job.

    Attributes:
        job: the waiting job.
        overdue: whether it has waited for too long.
        time: time at which it starts at the latest; infinity if unknown.
        placement: where it starts then.
        beside: room that is left beside it at that time; changes with each job that starts in it.
    """

    job: WaitingJob
    overdue: bool
    time: float
    placement: Placement
    beside: Room

    def outlasts(self, end: float) -> bool:
        """Return whether a job that ends at a time, infinity if unknown, is gone when the room is needed."""
        return end <= self.time < math.inf


def reserve(job: WaitingJob, overdue: bool, room: Room, leaving: Sequence[Leaving]) -> Reservation | None:
    """Return the room to keep for a job; None if there is no time at which it starts, and it is not overdue.

    Args:
        job: a waiting job that fits on the empty nodes.
        overdue: whether it has waited for too long.
        room: what is free without the running jobs' resources.
        leaving: what becomes free, in any order.
    """
    # Among jobs without limits, the oldest count as the first to end: new ones are never older, so the nodes that are
    # chosen remain the same from plan to plan.
    order = sorted(leaving, key=lambda one: (one.time, one.order))
    known = order if overdue else [one for one in order if one.time < math.inf]

    def free_after(count: int) -> Room:
        free = room.copy()
        for one in known[:count]:
            free.give(one.placement)
        return free

    if free_after(len(known)).place(job.request) is None:
        return None
    low, high = 0, len(known)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if free_after(middle).place(job.request) is not None else (middle + 1, high)
    time = known[high - 1].time if high else -math.inf
    # With all that leaves by then: what a plan starts until that time has left, also if a later plan finds it running.
    beside = free_after(max(high, sum(one.time <= time < math.inf for one in known)))
    placement = beside.place(job.request)
    if placement is None:
        return None
    beside.take(placement)
    return Reservation(job, overdue, time, placement, beside)
