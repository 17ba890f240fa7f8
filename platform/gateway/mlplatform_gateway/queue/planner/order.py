"""Order of the waiting jobs: which of them has a right to room, and which is served before which."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable

from mlplatform_gateway.queue.planner.preemption import Right
from mlplatform_gateway.queue.planner.queue import RunningJob, WaitingJob
from mlplatform_gateway.queue.planner.shares import Shares
from mlplatform_gateway.queue.planner.state import USE_SCALE, Age, State

Rank = tuple[float, ...]
"""Position in the order, smaller is earlier; the first number is a `Right`, the last that of the arrival."""


class Order:
    """Order of the waiting jobs in a round.

    Attributes:
        first: jobs by team that are promised room in its share, so that others of the team are beyond it before them.

    Args:
        state: of the queue.
        shares: what teams and persons hold, and are promised in the round.
    """

    def __init__(self, state: State, shares: Shares) -> None:
        self._state, self._shares = state, shares
        self.first: dict[str, list[RunningJob | WaitingJob]] = defaultdict(list)
        self._teams: dict[str, tuple[float, float, int]] = {}

    def forget(self, team: str) -> None:
        """Compute the rank of a team again: it has got something."""
        self._teams.pop(team, None)

    def rank(self, job: WaitingJob, right: Right | None = None) -> Rank:
        """Return a job's rank: first are jobs with a right to room, then the others, those that yield last.

        Within a team, jobs that have waited for long are first, then the class decides, then the cost: the work that a
        job may do until its limit, which counts for more the more its person has used lately; then the arrival. Beyond
        the shares, the cost, times what the team has borrowed lately per weight, orders the teams. Names never decide.

        In the prototype that `SENIOR_PART` names, the mean completion relative to the best other policy was 0.94, with
        persons ordered by use and teams by what they had borrowed 1.06, with the cost within teams only 1.00. Use and
        what was borrowed gain nothing there (0.945 without): they divide the cluster between persons, and by the teams'
        weights.
        """
        reserved, right = self._state.reserved(job), self.right(job) if right is None else right
        # Jobs take the room that has been left for others, so they start in the order in which it was promised.
        promised = reserved.deadline if reserved else math.inf
        if job.team not in self._teams:
            self._teams[job.team] = self._rank_of_team(job.team)
        borrowed, beyond, first = self._teams[job.team]
        rank: Rank = right, promised, 0.0, 0.0, first
        if right <= Right.SENIOR:
            rank = Right.SHARE, promised, 0.0, 0.0, first
        elif right is Right.OVERDUE:
            rank = right, promised, 0.0, 0.0, 0.0
        elif right is Right.NONE:
            rank = right, self._state.most(job) * (1 + borrowed / USE_SCALE), borrowed, beyond, first
        is_old = right is Right.SENIOR or reserved is not None or (right < Right.NONE and self._state.is_overdue(job))
        return *rank, *self._state.order(job, is_old)

    def _rank_of_team(self, team: str) -> tuple[float, float, int]:
        """Return what a team has borrowed lately and borrows now, per weight, and the arrival of its first job."""
        first = next(one.sequence for one in self._state.arrivals[team] if one.id in self._state.waiting)
        borrowed = self._shares.per_weight(team, self._state.view.usage.borrowed.get(team, 0.0))
        return borrowed, self._shares.beyond(team), first

    def right(self, job: WaitingJob, kind: Hashable = None) -> Right:
        """Return a job's right; a senior job has that of its kind."""
        if job.yields_until > self._state.now:
            return Right.YIELDS
        may_precede = kind is not Age.NEW and not self._shares.alone and self._state.is_senior(job)
        if may_precede and self._shares.includes_after(job, self.before(job)):
            return Right.SENIOR
        if self._shares.includes(job):
            return Right.SHARE
        return Right.OVERDUE if self._state.is_overdue(job) else Right.NONE

    def before(self, job: WaitingJob) -> list[RunningJob | WaitingJob]:
        """Return the jobs of a team that precede one of its waiting jobs in the share."""
        running = [one for one in self._state.teams[job.team] if one.sequence < job.sequence]
        return [*running, *self.first.get(job.team, ())]
