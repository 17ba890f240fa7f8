"""Measures of a simulation: completion, waits, fairness between teams, and lost work."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine import Outcome, Result
from workload import HOUR

LARGE_GPUS = 8
"""GPUs from which a job counts as large: a whole node, and more than the share of most teams."""

_BOUND_S = 600.0
"""Shorter jobs count as this long in a slowdown, or a minute's wait of a short test would decide it
(bounded slowdown, Feitelson et al., "Theory and Practice in Parallel Job Scheduling", 1997)."""


@dataclass(frozen=True)
class Measures:
    """One row of the report. Times are in hours unless the name has another unit."""

    workload: str
    policy: str
    completion_h: float
    """Mean time from arrival to end."""

    entitled_jobs: int
    entitled_wait_p99_s: float
    """Of the waits until the first start of jobs that arrived within their team's share."""

    worst_rho: float
    """Largest of `rho`: above 1, that team would complete its jobs sooner with a cluster of its own."""

    rho: Mapping[str, float]
    """Mean completion of each team, divided by that of the team alone on its share (after Themis, NSDI 2020)."""

    jain: float
    """Jain's index of the teams' mean bounded slowdowns: 1 if all are equal, also if all are equally bad."""

    large_wait_p99_h: float
    """Of all time in the queue of jobs with 8 GPUs or more."""

    preemptions: int
    lost_gpu_h: float
    """Work that was not saved, and restarts, in GPU-hours."""

    lost_share: float
    """Those GPU-hours, divided by those of all jobs."""


def measure(result: Result, alone: Mapping[str, Result]) -> Measures:
    """Measure a simulation; `alone` has, for each team, a simulation of its jobs on its share alone."""
    outcomes = result.outcomes
    entitled = [outcome.first_wait_s for outcome in outcomes if outcome.entitled]
    large = [outcome.waited_s for outcome in outcomes if outcome.job.gpus >= LARGE_GPUS]
    by_team: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_team[outcome.job.team].append(outcome)
    rho = {team: completion(ours) / completion(alone[team].outcomes) for team, ours in by_team.items()}
    lost = sum(outcome.lost_s * outcome.job.gpus for outcome in outcomes)
    return Measures(
        workload=result.workload.name,
        policy=result.policy,
        completion_h=completion(outcomes) / HOUR,
        entitled_jobs=len(entitled),
        entitled_wait_p99_s=percentile(entitled, 99),
        worst_rho=max(rho.values()),
        rho=rho,
        jain=jain([slowdown(ours) for ours in by_team.values()]),
        large_wait_p99_h=percentile(large, 99) / HOUR,
        preemptions=sum(outcome.preemptions for outcome in outcomes),
        lost_gpu_h=lost / HOUR,
        lost_share=lost / sum(outcome.job.gpu_seconds for outcome in outcomes),
    )


def completion(outcomes: Sequence[Outcome]) -> float:
    """Return the mean time from arrival to end, in seconds."""
    return sum(outcome.completion_s for outcome in outcomes) / len(outcomes)


def slowdown(outcomes: Sequence[Outcome]) -> float:
    """Return the mean bounded slowdown: completion, divided by the duration or ten minutes, at least 1."""
    ratios = [max(1.0, outcome.completion_s / max(outcome.job.duration_s, _BOUND_S)) for outcome in outcomes]
    return sum(ratios) / len(ratios)


def percentile(values: Iterable[float], percent: float) -> float:
    """Return a percentile by nearest rank, thus a value that occurred; 0 if there are none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0


def jain(values: Sequence[float]) -> float:
    """Return Jain's index of fairness: the squared sum, divided by the count times the sum of squares."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))
