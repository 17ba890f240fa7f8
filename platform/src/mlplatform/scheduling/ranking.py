"""Order in which waiting jobs are considered."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable

from mlplatform.scheduling.books import Books
from mlplatform.scheduling.decay import rate
from mlplatform.scheduling.lines import class_order
from mlplatform.scheduling.queue import WaitingJob
from mlplatform.scheduling.room import asked
from mlplatform.scheduling.shares import per_weight
from mlplatform.scheduling.state import State

Rank = tuple[float, ...]
"""Position in the order, smaller is earlier; the last number is the job's own in the order of arrival."""


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
        self._ranks: dict[str, tuple[int, Rank]] = {}
        self._first: dict[str, float] = defaultdict(lambda: math.inf)
        for line in state.lines:
            if head := line.head:
                self._first[head.team] = min(self._first[head.team], head.sequence)

    def is_overdue(self, job: WaitingJob) -> bool:
        """Return whether a job has waited for too long."""
        return job.arrived + self._state.rules.overdue_s <= self._state.now

    def is_within(self, job: WaitingJob) -> bool:
        """Return whether a job is within its team's share."""
        return self._books.shares.includes(job.team, asked(job.request))

    def rank(self, job: WaitingJob) -> Rank:
        """Return a job's rank. While jobs start, ranks only become larger."""
        version, rank = self._ranks.get(job.id, (-1, ()))
        if version != self._books.version:
            rank = self._rank(job)
            self._ranks[job.id] = self._books.version, rank
        return rank

    def _rank(self, job: WaitingJob) -> Rank:
        shares, usage, first = self._books.shares, self._state.view.usage, self._first[job.team]
        overdue = self.is_overdue(job)
        if self.is_within(job):
            return 0.0, shares.ratio(job.team), 0.0, first, *self._inside(job, overdue), job.sequence
        if overdue:
            return 1.0, job.sequence
        weight = self._state.view.teams[job.team].weight
        past = per_weight(usage.borrowed.get(job.team, 0.0), weight)
        present = per_weight(shares.beyond(job.team), weight)
        return 2.0, past, present, first, *self._inside(job, overdue), job.sequence

    def _inside(self, job: WaitingJob, overdue: bool) -> Rank:
        """Return the part of a rank that orders the jobs of one team."""
        if overdue:
            return 0.0, 0.0, 0.0, 0.0
        held = self._books.capped.of_person(job.team, job.person)
        used = self._state.view.usage.persons.get(job.person, 0.0)
        return 1.0, class_order(job.job_class), used, rate(held.gpus, held.cpus)

    def places(self) -> Places:
        """Return the places of all jobs that wait."""
        places = Places()
        for line in self._state.lines:
            waiting = [job for job in line.jobs if job.id in self._state.waiting]
            claims = [job for job in waiting if job.id in self._books.claims]
            rest = [job for job in waiting if job.id not in self._books.claims] if claims else waiting
            overdue = sum(map(self.is_overdue, rest)) if rest and self.is_overdue(rest[0]) else 0
            places.add((-1.0,), claims)
            for part in (rest[:overdue], rest[overdue:]):
                if part:
                    places.add(self.rank(part[0])[:-1], part)
        places.close()
        return places


class Places:
    """Places of waiting jobs in the order of their ranks, from 1."""

    def __init__(self) -> None:
        self._sequences: dict[Rank, list[int]] = defaultdict(list)
        self._prefixes: dict[str, Rank] = {}
        self._before: dict[Rank, int] = {}

    def add(self, prefix: Rank, jobs: Iterable[WaitingJob]) -> None:
        """Add jobs whose ranks differ in their last number only, in the order of these."""
        sequences = self._sequences[prefix]
        for job in jobs:
            sequences.append(job.sequence)
            self._prefixes[job.id] = prefix

    def close(self) -> None:
        """Count, after the last jobs were added."""
        before = 0
        for prefix in sorted(self._sequences):
            self._sequences[prefix].sort()
            self._before[prefix] = before
            before += len(self._sequences[prefix])

    def of(self, job: WaitingJob) -> int:
        """Return the place of a job."""
        prefix = self._prefixes[job.id]
        return self._before[prefix] + bisect_left(self._sequences[prefix], job.sequence) + 1
