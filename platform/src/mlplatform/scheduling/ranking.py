"""Order in which waiting jobs are considered."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container
from itertools import accumulate
from operator import attrgetter

from mlplatform.scheduling.books import Books
from mlplatform.scheduling.decay import rate
from mlplatform.scheduling.lines import class_order
from mlplatform.scheduling.queue import WaitingJob
from mlplatform.scheduling.room import asked
from mlplatform.scheduling.shares import per_weight
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
        """Return the places of all jobs that wait, as of now."""
        claims = self._books.claims
        sequences: dict[Rank, list[int]] = defaultdict(list)
        for line in self._state.lines:
            taken, rest = line.jobs[: line.position], line.jobs[line.position :]
            rest = [job for job in taken if job.id in self._state.waiting and job.id not in claims] + rest
            if self._state.view.claims:
                rest = [job for job in rest if job.id not in claims]
            overdue = sum(map(self.is_overdue, rest)) if rest and self.is_overdue(rest[0]) else 0
            for part in (rest[:overdue], rest[overdue:]):
                if part:
                    sequences[self.rank(part[0])[:-1]].extend(map(attrgetter("sequence"), part))
        sequences[_CLAIMED].extend(self._state.waiting[job].sequence for job in claims)
        return Places(self, claims, sequences)


class Places:
    """Places of waiting jobs in the order of their ranks, from 1."""

    def __init__(self, ranking: Ranking, claims: Container[str], sequences: dict[Rank, list[int]]) -> None:
        """Count the jobs before each rank.

        Args:
            ranking: the ranks.
            claims: ids of jobs with a claim, which are first.
            sequences: numbers of the jobs, by the ranks without these numbers.
        """
        self._ranking = ranking
        self._claims = claims
        self._sequences = {prefix: sorted(sequences[prefix]) for prefix in sorted(sequences)}
        self._before = dict(
            zip(self._sequences, accumulate(map(len, self._sequences.values()), initial=0), strict=False)
        )

    def of(self, job: WaitingJob) -> int:
        """Return the place of a job."""
        prefix = _CLAIMED if job.id in self._claims else self._ranking.rank(job)[:-1]
        return self._before[prefix] + bisect_left(self._sequences[prefix], job.sequence) + 1
