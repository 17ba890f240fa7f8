"""Room that is kept for a job which does not fit, as EASY backfill does (Lifka 1995).

Later jobs may start only if they end before it is needed, or fit beside it. The time is computed from the limits of the
running jobs. If one of the jobs that must end first has no limit, the time is unknown; room is then kept for overdue
jobs only, and nothing else starts on the nodes that were chosen for them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from mlplatform_gateway.queue.planner.accounts import Accounts
from mlplatform_gateway.queue.planner.queue import Placement, RunningJob, WaitingJob
from mlplatform_gateway.queue.planner.room import Room
from mlplatform_gateway.queue.planner.state import State


@dataclass(frozen=True)
class Reservation:
    """Room that is kept for a job.

    Attributes:
        job: the waiting job.
        overdue: whether it has waited for too long.
        time: time at which it starts at the latest; infinity if unknown.
        beside: room that is left beside it at that time; changes with each job that starts in it.
    """

    job: WaitingJob
    overdue: bool
    time: float
    beside: Room

    def outlasts(self, job: WaitingJob, state: State) -> bool:
        """Return whether a job that starts now is gone when the room is needed."""
        return job.limit_s is not None and state.now + job.limit_s + state.rules.grace_s <= self.time < math.inf


def reserve(job: WaitingJob, state: State, accounts: Accounts) -> Reservation | None:
    """Return the room to keep for a job within its share that fits on the empty nodes.

    Without a known start time, room is kept only for an overdue job.
    """
    overdue = state.is_overdue(job)
    # Among jobs without limits, the oldest count as the first to end: new ones are never older, so the nodes that are
    # chosen remain the same from plan to plan.
    ends = sorted(_ends(job, state, accounts), key=lambda end: end[:3])
    base = accounts.base()
    known = [(time, placement) for time, _, _, placement in ends if overdue or time < math.inf]

    def free_after(count: int) -> Room:
        free = base.copy()
        for _, placement in known[:count]:
            free.give(placement)
        return free

    if free_after(len(known)).place(job.request) is None:
        return None
    high = bisect_left(range(len(known)), True, key=lambda count: free_after(count).place(job.request) is not None)
    time = known[high - 1][0] if high else -math.inf
    # With all that leaves by then: what a plan starts until that time has left, also if a later plan finds it running.
    beside = free_after(max(high, sum(end <= time < math.inf for end, _ in known)))
    placement = beside.place(job.request)
    if placement is None:
        return None
    beside.take(placement)
    return Reservation(job, overdue, time, beside)


def _ends(job: WaitingJob, state: State, accounts: Accounts) -> Iterator[tuple[float, float, int, Placement]]:
    """Yield what becomes free for a job: the latest time, start and number of who has it, and the placement."""
    shares, grace = accounts.shares, state.rules.grace_s
    staying = [one for one in state.staying() if one.team != job.team]
    borrowed: set[str] = set()
    for team in {one.team for one in staying}:
        borrowed |= shares.borrowed(team, [one for one in staying if one.team == team])

    def end(one: RunningJob) -> float:
        if one.notice is not None:
            return one.notice.deadline if state.is_leaving(one) else math.inf
        if one.id in borrowed or one.idle:
            return state.now + grace
        return math.inf if one.ends_by is None else max(state.now, one.ends_by) + grace

    for one in state.running.values():
        yield end(one), one.started, one.sequence, one.placement
    for claim in accounts.claims:
        waiting = state.waiting[claim.job]
        ends = math.inf if waiting.limit_s is None else claim.deadline + waiting.limit_s + grace
        yield ends, state.now, waiting.sequence, claim.placement
