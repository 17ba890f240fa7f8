"""Queue like that of Slurm: multifactor priority with Fair Tree, and backfill."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from backfill import gpus_of, start_in_order
from workload import DAY

from mlplatform.scheduling.queue import Action, JobClass, View, WaitingJob

_MAX_AGE_S = 7 * DAY
"""`PriorityMaxAge`, its default."""

_WEIGHTS = {"fair share": 10_000.0, "age": 5_000.0, "size": 1_000.0, "class": 20_000.0}
"""`PriorityWeight...`: Slurm has no defaults; fair share before age before size is what sites publish."""

_CLASSES = {JobClass.URGENT: 1.0, JobClass.NORMAL: 0.5, JobClass.IDLE: 0.0}
"""Our classes as QOS, whose factor is normalized to 0 to 1."""


class SlurmLike:
    """Start jobs by priority; one reservation, for the first that does not fit.

    Modelled: `priority/multifactor` with factors for age, fair share (Fair Tree over two levels, accounts and users),
    size (`PriorityFavorSmall=NO`) and QOS; `sched/backfill`.
    Not modelled: reservations for more than one job and the window of one day (`bf_window`), the intervals between
    cycles, partitions, TRES weights, preemption by QOS, which needs two classes of jobs that the trace lacks. Decay has
    the half-life of the view (2 days) instead of Slurm's default of 7.
    """

    name = "Slurm-like"
    timed = False

    def __init__(self) -> None:
        self._team_of: dict[str, str] = {}

    def decide(self, view: View) -> Sequence[Action]:
        for job in (*view.waiting, *view.running):
            self._team_of[job.person] = job.team
        if not any(node.free.get("GPU", 0.0) for node in view.nodes):
            return []
        fair = self._fair_tree(view)
        total = sum(node.total.get("GPU", 0.0) for node in view.nodes)

        def priority(job: WaitingJob) -> float:
            factors = {
                "fair share": fair[job.person],
                "age": min(1.0, (view.now - job.since) / _MAX_AGE_S),
                "size": gpus_of(job) / total,
                "class": _CLASSES[job.job_class],
            }
            return sum(_WEIGHTS[name] * value for name, value in factors.items())

        return start_in_order(view, sorted(view.waiting, key=lambda job: (-priority(job), job.sequence)))

    def _fair_tree(self, view: View) -> dict[str, float]:
        """Return the factor of each person: accounts by share over use, then users by the same, ranked from 1 down."""
        used: dict[str, float] = defaultdict(float)
        for person, value in view.usage.persons.items():
            used[self._team_of.get(person, "")] += value
        ranked = sorted(
            self._team_of,
            key=lambda person: (
                -_level(view.teams[self._team_of[person]].gpus, used[self._team_of[person]]),
                self._team_of[person],
                -_level(1.0, view.usage.persons.get(person, 0.0)),
                person,
            ),
        )
        return {person: 1.0 - index / len(ranked) for index, person in enumerate(ranked)}


def _level(share: float, used: float) -> float:
    """Return Fair Tree's level fair share: infinite for who has used nothing."""
    return share / used if used > 0 else math.inf
