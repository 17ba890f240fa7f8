"""Shares of teams: what each holds, and what it has borrowed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from mlplatform.capacity.resources import Node, rate
from mlplatform_gateway.queue.planner.queue import Placement, RunningJob, Team, WaitingJob
from mlplatform_gateway.queue.planner.room import EPSILON

Amount = tuple[float, float]
"""GPUs and CPUs."""


@dataclass(frozen=True)
class Held:
    """Resources that somebody holds, with those that they are promised."""

    gpus: float = 0.0
    cpus: float = 0.0
    jobs: int = 0


class Shares:
    """Shares of the teams, compared with what they hold on living nodes.

    Shares shrink in proportion if the living nodes have less than all shares together. A team that is alone has
    everything.

    Attributes:
        teams: by name.
    """

    def __init__(self, teams: Mapping[str, Team], nodes: Sequence[Node]) -> None:
        """Compute the shares; nothing is held yet.

        Args:
            teams: by name.
            nodes: nodes of the cluster.
        """
        self.alone = len(teams) == 1
        self.alive = tuple(node.name for node in nodes if node.alive)
        there = total({node.name: node.total for node in nodes}, self.alive)
        promised = sum(team.gpus for team in teams.values()), sum(team.cpus for team in teams.values())
        self._part = tuple(
            min(1.0, have / most) if most > 0 else 1.0 for have, most in zip(there, promised, strict=True)
        )
        self.teams = teams
        self._held: dict[tuple[str, ...], Held] = defaultdict(Held)
        self._amounts: dict[str, Amount] = {}
        self._places: dict[str, tuple[bool, float, int]] = {}

    def copy(self) -> Shares:
        """Return a copy that changes independently."""
        shares = copy(self)
        shares._held = self._held.copy()
        return shares

    def of(self, team: str) -> Amount:
        """Return a team's share."""
        if self.alone:
            return math.inf, math.inf
        return self.teams[team].gpus * self._part[0], self.teams[team].cpus * self._part[1]

    def amount(self, job: WaitingJob | RunningJob) -> Amount:
        """Return what a waiting job requests, or the footprint of a running one on living nodes."""
        if isinstance(job, WaitingJob):
            return job.request.sums
        if job.id not in self._amounts:
            self._amounts[job.id] = total(job.placement, self.alive)
        return self._amounts[job.id]

    def add(self, job: WaitingJob | RunningJob, only: tuple[str, ...] = ()) -> None:
        """Count what a job holds that runs, or waits and is promised its room; for its team or its person only."""
        gpus, cpus = self.amount(job)
        keys: list[tuple[str, ...]] = [(job.team,), (job.team, job.person)]
        if job.group:
            keys.append(("group", job.team, job.person, job.group))
        for key in [only] if only else keys:
            held = self._held[key]
            self._held[key] = Held(held.gpus + gpus, held.cpus + cpus, held.jobs + 1)

    def held(self, team: str) -> Amount:
        """Return what a team holds."""
        held = self._held[team,]
        return held.gpus, held.cpus

    def counted(self, *key: str) -> Held:
        """Return what a team holds, a person in it (`team, person`), or a group (`"group", team, person, group`)."""
        return self._held[key]

    def includes(self, job: WaitingJob) -> bool:
        """Return whether a team would be within its share with a job more; only what the job requests counts."""
        return _within(self.held(job.team), job.request.sums, self.of(job.team))

    def includes_after(self, job: WaitingJob, before: Iterable[WaitingJob | RunningJob]) -> bool:
        """Return whether a job would be within its team's share if of its team only these jobs had something."""
        return _within(self._sum(before), job.request.sums, self.of(job.team))

    def _sum(self, jobs: Iterable[WaitingJob | RunningJob]) -> Amount:
        amounts = [self.amount(job) for job in jobs]
        return sum(gpus for gpus, _ in amounts), sum(cpus for _, cpus in amounts)

    def beyond(self, team: str) -> float:
        """Return what a team holds beyond its share, in GPUs per weight; a team of weight 0 comes last."""
        (gpus, cpus), (share_gpus, share_cpus) = self.held(team), self.of(team)
        return self.per_weight(team, rate(max(0.0, gpus - share_gpus), max(0.0, cpus - share_cpus)))

    def per_weight(self, team: str, use: float) -> float:
        """Return a use per weight of the team, by which teams are ordered; infinity for weight 0."""
        weight = self.teams[team].weight
        return use / weight if weight > 0 else math.inf

    def borrowed(
        self, team: str, jobs: Iterable[RunningJob], before: Iterable[WaitingJob | RunningJob] = ()
    ) -> set[str]:
        """Return the ids of a team's jobs that are beyond its share.

        These are the youngest, and before them those that hold more GPUs than they have requested: no other job of the
        team leaves for these. This is computed from what runs now, so a job becomes protected when others end.

        Args:
            team: name of the team.
            jobs: its running jobs, without those that were preempted.
            before: other jobs of the team that have their room in the share first.
        """
        share, sums, found = self.of(team), self._sum(before), set()
        for job in sorted(jobs, key=self._place):
            amount = self.amount(job)
            if not _within(sums, amount, share):
                found.add(job.id)
            sums = sums[0] + amount[0], sums[1] + amount[1]
        return found

    def part(self, team: str, jobs: Iterable[WaitingJob | RunningJob]) -> float:
        """Return the part of its share that a team's jobs hold, of the resource where it is largest."""
        held = zip(self._sum(jobs), self.of(team), strict=True)
        parts = [have / most if most else math.inf for have, most in held if have > 0]
        return max(parts, default=0.0)

    def _place(self, job: RunningJob) -> tuple[bool, float, int]:
        """Return a job's place in the share: after others if it holds more GPUs than it has requested.

        Its CPUs do not count: they change with each of its tasks.
        """
        if job.id not in self._places:
            self._places[job.id] = self.amount(job)[0] > job.request.sums[0] + EPSILON, job.started, job.sequence
        return self._places[job.id]


def total(placement: Placement, nodes: Iterable[str] | None = None) -> Amount:
    """Return the GPUs and CPUs of a placement, on some nodes or on all."""
    parts = [placement[name] for name in nodes if name in placement] if nodes is not None else placement.values()
    return sum(part.get("GPU", 0) for part in parts), sum(part.get("CPU", 0) for part in parts)


def _within(held: Amount, more: Amount, most: Amount) -> bool:
    (gpus, cpus), (more_gpus, more_cpus), (most_gpus, most_cpus) = held, more, most
    return (more_gpus <= EPSILON or gpus + more_gpus <= most_gpus + EPSILON) and (
        more_cpus <= EPSILON or cpus + more_cpus <= most_cpus + EPSILON
    )
