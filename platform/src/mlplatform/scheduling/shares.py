"""Shares of teams: what each team holds of its share, and which of its jobs run on what it has borrowed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from mlplatform.scheduling.decay import rate
from mlplatform.scheduling.queue import RunningJob, Team
from mlplatform.scheduling.resources import Node
from mlplatform.scheduling.room import total

EPSILON = 1e-6
"""Tolerance in comparisons of sums: ten times 0.1 GPUs are within a share of 1."""

Amount = tuple[float, float]
"""GPUs and CPUs."""


class Shares:
    """Shares of the teams, and what they hold on living nodes.

    Shares shrink in proportion if the living nodes have less than all shares together. A team that is alone has
    everything.
    """

    def __init__(self, teams: Mapping[str, Team], nodes: Sequence[Node]) -> None:
        """Compute the shares; nothing is held yet.

        Args:
            teams: by name.
            nodes: nodes of the cluster.
        """
        self.alone = len(teams) == 1
        self.alive = tuple(node.name for node in nodes if node.alive)
        self._teams = teams
        self._part = tuple(
            min(1.0, sum(node.total.get(name, 0) for node in nodes if node.alive) / promised) if promised > 0 else 1.0
            for name, promised in (
                ("GPU", sum(team.gpus for team in teams.values())),
                ("CPU", sum(team.cpus for team in teams.values())),
            )
        )
        self._held: dict[str, Amount] = defaultdict(lambda: (0.0, 0.0))
        self._amounts: dict[str, Amount] = {}

    def of(self, team: str) -> Amount:
        """Return a team's share."""
        if self.alone:
            return math.inf, math.inf
        return self._teams[team].gpus * self._part[0], self._teams[team].cpus * self._part[1]

    def amount(self, job: RunningJob) -> Amount:
        """Return the footprint of a running job on living nodes."""
        if job.id not in self._amounts:
            self._amounts[job.id] = total(job.placement, self.alive)
        return self._amounts[job.id]

    def held(self, team: str) -> Amount:
        """Return what a team holds."""
        return self._held[team]

    def add(self, team: str, amount: Amount) -> None:
        """Count an amount as held by a team; a negative one as returned."""
        gpus, cpus = self._held[team]
        self._held[team] = gpus + amount[0], cpus + amount[1]

    def includes(self, team: str, amount: Amount) -> bool:
        """Return whether a team would be within its share with an amount more; only what it asks for counts."""
        return _within(self.held(team), amount, self.of(team))

    def ratio(self, team: str) -> float:
        """Return the part of its share that a team holds, of the resource where it is largest."""
        return ratio(self.held(team), self.of(team))

    def beyond(self, team: str) -> float:
        """Return what a team holds beyond its share, in GPUs."""
        (gpus, cpus), (share_gpus, share_cpus) = self.held(team), self.of(team)
        return rate(max(0.0, gpus - share_gpus), max(0.0, cpus - share_cpus))

    def borrowed(self, team: str, jobs: Iterable[RunningJob]) -> set[str]:
        """Return the ids of a team's jobs that are beyond its share.

        These are the youngest, and before them those that hold more GPUs than they have requested: no other job of the
        team leaves for these. This is computed from what runs now, so a job becomes protected when others end.

        Args:
            team: name of the team.
            jobs: its running jobs, without those that were asked to leave.
        """
        share, sums, found = self.of(team), (0.0, 0.0), set()
        for job in sorted(jobs, key=lambda job: (self._is_excessive(job), job.started, job.sequence)):
            amount = self.amount(job)
            if not _within(sums, amount, share):
                found.add(job.id)
            sums = sums[0] + amount[0], sums[1] + amount[1]
        return found

    def _is_excessive(self, job: RunningJob) -> bool:
        """Return whether a job holds more GPUs than it has requested; CPUs change with each of its tasks."""
        return self.amount(job)[0] > job.request.sums[0] + EPSILON


def ratio(held: Amount, share: Amount) -> float:
    """Return the part of a share that is held, of the resource where it is largest; infinity without a share."""
    parts = [have / most if most else math.inf for have, most in zip(held, share, strict=True) if have > EPSILON]
    return max(parts, default=0.0)


def _within(held: Amount, amount: Amount, share: Amount) -> bool:
    (gpus, cpus), (more_gpus, more_cpus), (most_gpus, most_cpus) = held, amount, share
    return (more_gpus <= EPSILON or gpus + more_gpus <= most_gpus + EPSILON) and (
        more_cpus <= EPSILON or cpus + more_cpus <= most_cpus + EPSILON
    )


def per_weight(use: float, weight: float) -> float:
    """Return use per weight, by which teams are ordered; a team of weight 0 comes last."""
    return use / weight if weight > 0 else math.inf
