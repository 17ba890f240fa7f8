"""Order in which waiting jobs are considered."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable

from mlplatform.scheduling.books import Books
from mlplatform.scheduling.decay import rate
from mlplatform.scheduling.lines import Group, Line, class_order
from mlplatform.scheduling.queue import Reason, WaitingJob
from mlplatform.scheduling.room import asked
from mlplatform.scheduling.shares import Amount, per_weight
from mlplatform.scheduling.state import State

Rank = tuple[float, ...]
"""Position in the order, smaller is earlier; the last number is the job's own in the order of arrival."""


class Ranking:
    """Ranks of waiting jobs: first those within their shares, then overdue ones, then the others.

    Between teams, the one that uses less of its share is first; beyond the shares, the one that has borrowed less.
    Within a team, overdue jobs are first, then the class decides, then the person's use, then the arrival. Ties between
    teams are broken by the first jobs that still wait, never by names.
    """

    def __init__(self, state: State, books: Books, is_served: Callable[[WaitingJob], bool]) -> None:
        """Rank by what is held in the books, which change.

        Args:
            state: what is known.
            books: accounts of the pass.
            is_served: whether a job has been started, or waits for others to leave.
        """
        self._state = state
        self._books = books
        self._now, self._overdue_s = state.now, state.rules.overdue_s
        self._used: dict[str, float] = {}
        self._is_served = is_served
        self._served: dict[str, int] = defaultdict(int)

    def is_overdue(self, job: WaitingJob) -> bool:
        """Return whether a job has waited for too long."""
        return job.since + self._overdue_s <= self._now

    def rank(self, job: WaitingJob) -> Rank:
        """Return a job's rank. While jobs start, ranks only become larger."""
        return *self.rank_of_team(job.team, asked(job.request), self.is_overdue(job)), *self.rank_in_team(job)

    def rank_of_team(self, team: str, amount: Amount, overdue: bool) -> Rank:
        """Return the first part of a rank, which orders the jobs of different teams."""
        shares, first = self._books.shares, self._first(team)
        if shares.includes(team, amount):
            return 0.0, shares.ratio(team), 0.0, first
        if overdue:
            return (1.0,)
        weight = self._state.view.teams[team].weight
        past = per_weight(self._state.view.usage.borrowed.get(team, 0.0), weight)
        return 2.0, past, per_weight(shares.beyond(team), weight), first

    def _first(self, team: str) -> float:
        """Return the number of a team's first job that still waits."""
        jobs, served = self._state.arrivals[team], self._served[team]
        while served < len(jobs) and self._is_served(jobs[served]):
            served += 1
        self._served[team] = served
        return jobs[served].sequence if served < len(jobs) else math.inf

    def rank_in_team(self, job: WaitingJob) -> Rank:
        """Return the second part of a rank, which orders the jobs of a team; it begins with 0 if the job is overdue."""
        if self.is_overdue(job):
            return 0.0, 0.0, 0.0, 0.0, job.sequence
        held = self._books.capped.of_person(job.team, job.person)
        used = self._used.get(job.person)
        if used is None:
            used = self._used[job.person] = self._state.view.usage.persons.get(job.person, 0.0)
        return 1.0, class_order(job.job_class), used, rate(held.gpus, held.cpus), job.sequence


class Order:
    """Lines of one group in the order of their first jobs, which changes as jobs start."""

    def __init__(self, group: Group, ranking: Ranking, is_served: Callable[[WaitingJob], bool]) -> None:
        """Sort the lines of a group.

        Args:
            group: the group.
            ranking: ranks of its jobs.
            is_served: whether a job has been started, or waits for others to leave.
        """
        self._team = group.team
        self._amount = asked(group.lines[0].jobs[0].request)
        self._ranking = ranking
        self._is_served = is_served
        self._heap = [
            (ranking.rank_in_team(head), number, line) for number, line in enumerate(group.lines) if (head := line.head)
        ]
        heapq.heapify(self._heap)

    @property
    def line(self) -> Line:
        """The line of the head."""
        return self._heap[0][2]

    def rank(self) -> Rank:
        """Return the rank of the head."""
        in_team = self._heap[0][0]
        return *self._ranking.rank_of_team(self._team, self._amount, in_team[0] == 0), *in_team

    def head(self) -> WaitingJob | None:
        """Return the first job that waits; None if no line has one."""
        while self._heap:
            rank, number, line = self._heap[0]
            head = line.advance(self._is_served)
            if head is None:
                heapq.heappop(self._heap)
                continue
            current = self._ranking.rank_in_team(head)
            if current == rank:
                return head
            heapq.heapreplace(self._heap, (current, number, line))
        return None

    def drop(self, obstacle: Reason) -> None:
        """Leave the line of the head out, which this obstacle keeps waiting."""
        heapq.heappop(self._heap)[2].obstacle = obstacle
