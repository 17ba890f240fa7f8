"""Order in which waiting jobs are considered."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from operator import attrgetter

from mlplatform.scheduling.books import Books
from mlplatform.scheduling.decay import rate
from mlplatform.scheduling.lines import Group, Line, class_order
from mlplatform.scheduling.queue import WaitingJob
from mlplatform.scheduling.room import asked
from mlplatform.scheduling.shares import Amount, per_weight
from mlplatform.scheduling.state import State

Rank = tuple[float, ...]
"""Position in the order, smaller is earlier; the last number is the job's own in the order of arrival."""

_CLAIMED: Rank = (-1.0,)


class Ranking:
    """Ranks of waiting jobs: first those within their shares, then overdue ones, then the others.

    Between teams, the one that uses less of its share is first; beyond the shares, the one that has borrowed less.
    Within a team, overdue jobs are first, then the class decides, then the person's use, then the arrival. Ties between
    teams are broken by their first jobs, never by names.
    """

    def __init__(self, state: State, books: Books) -> None:
        """Rank by what is held in the books, which change.

        Args:
            state: what is known.
            books: accounts of the pass.
        """
        self._state = state
        self._books = books
        self._used: dict[str, float] = {}
        self._first: dict[str, float] = defaultdict(lambda: math.inf)
        for group in state.groups:
            firsts = [head.sequence for line in group.lines if (head := line.head)]
            self._first[group.team] = min(self._first[group.team], *firsts, math.inf)

    def is_overdue(self, job: WaitingJob) -> bool:
        """Return whether a job has waited for too long."""
        return job.since + self._state.rules.overdue_s <= self._state.now

    def rank(self, job: WaitingJob) -> Rank:
        """Return a job's rank. While jobs start, ranks only become larger."""
        return *self.rank_of_team(job.team, asked(job.request), self.is_overdue(job)), *self.rank_in_team(job)

    def rank_of_team(self, team: str, amount: Amount, overdue: bool) -> Rank:
        """Return the first part of a rank, which orders the jobs of different teams."""
        shares, first = self._books.shares, self._first[team]
        if shares.includes(team, amount):
            return 0.0, shares.ratio(team), 0.0, first
        if overdue:
            return (1.0,)
        weight = self._state.view.teams[team].weight
        past = per_weight(self._state.view.usage.borrowed.get(team, 0.0), weight)
        return 2.0, past, per_weight(shares.beyond(team), weight), first

    def rank_in_team(self, job: WaitingJob) -> Rank:
        """Return the second part of a rank, which orders the jobs of a team; it begins with 0 if the job is overdue."""
        if self.is_overdue(job):
            return 0.0, 0.0, 0.0, 0.0, job.sequence
        held = self._books.capped.of_person(job.team, job.person)
        used = self._used.get(job.person)
        if used is None:
            used = self._used[job.person] = self._state.view.usage.persons.get(job.person, 0.0)
        return 1.0, class_order(job.job_class), used, rate(held.gpus, held.cpus), job.sequence

    def places(self) -> Places:
        """Return the places of all jobs that wait, as of now."""
        claims, waiting = self._books.claims, self._state.waiting
        places = Places(self, claims)
        for line in (line for group in self._state.groups for line in group.lines):
            taken, rest = line.jobs[: line.position], line.jobs[line.position :]
            rest = [job for job in taken if job.id in waiting and job.id not in claims] + rest
            if self._state.view.claims:
                rest = [job for job in rest if job.id not in claims]
            # Not only the first ones may be overdue: if the clock was set back, a job is older than those before it.
            if rest and self.is_overdue(min(rest, key=attrgetter("since"))):
                places.add([job for job in rest if self.is_overdue(job)])
                rest = [job for job in rest if not self.is_overdue(job)]
            if rest:
                places.add(rest)
        places.count(waiting[job].sequence for job in claims)
        return places


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

    def drop(self) -> None:
        """Leave the line of the head out."""
        heapq.heappop(self._heap)


class Places:
    """Places of waiting jobs in the order of their ranks, from 1."""

    def __init__(self, ranking: Ranking, claims: Container[str]) -> None:
        """Begin without jobs.

        Args:
            ranking: the ranks, which do not change any more.
            claims: ids of jobs with a claim, which are first.
        """
        self._ranking = ranking
        self._claims = claims
        self._teams: dict[tuple[str, Amount, bool], Rank] = {}
        self._prefixes: dict[tuple[Hashable, bool], Rank] = {}
        self._sequences: dict[Rank, list[int]] = defaultdict(list)
        self._before: dict[Rank, int] = {}

    def add(self, jobs: Sequence[WaitingJob]) -> None:
        """Add jobs of one line that are all overdue, or all not."""
        self._sequences[self._prefix(jobs[0])].extend(map(attrgetter("sequence"), jobs))

    def count(self, claimed: Iterable[int]) -> None:
        """Count the jobs before each rank, once all have been added.

        Args:
            claimed: sequence numbers of the jobs with a claim.
        """
        self._sequences[_CLAIMED] = sorted(claimed)
        before = 0
        for prefix in sorted(self._sequences):
            self._sequences[prefix].sort()
            self._before[prefix] = before
            before += len(self._sequences[prefix])

    def of(self, job: WaitingJob) -> int:
        """Return the place of a job."""
        prefix = _CLAIMED if job.id in self._claims else self._prefix(job)
        return self._before[prefix] + bisect_left(self._sequences[prefix], job.sequence) + 1

    def _prefix(self, job: WaitingJob) -> Rank:
        """Return a job's rank without its number, which is equal for all such jobs of a line."""
        line = job.line, self._ranking.is_overdue(job)
        if line not in self._prefixes:
            key = job.team, asked(job.request), line[1]
            if key not in self._teams:
                self._teams[key] = self._ranking.rank_of_team(*key)
            self._prefixes[line] = *self._teams[key], *self._ranking.rank_in_team(job)[:-1]
        return self._prefixes[line]
