"""CPU time that the planner takes for 10,000 waiting jobs on a full cluster."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice

from backfill import Room
from engine import Policy
from workload import Job, Workload, running

from mlplatform.scheduling.queue import Rules, RunningJob, Usage, View

WAITING = 10_000

_REPETITIONS = 15


def full_view(workload: Workload, waiting: int = WAITING) -> View:
    """Return a view of the workload's cluster, filled with its first jobs, while the next ones wait."""
    room = Room(workload.nodes)
    jobs = (job.waiting(index, job.arrived) for index, job in enumerate(_endless(workload)))
    held: list[RunningJob] = []
    while room.gpus:
        job = next(jobs)
        if placement := room.take(job.request):
            held.append(running(job, placement, job.since))
    nodes = tuple(replace(node, free=room.free[node.name]) for node in workload.nodes)
    persons = {job.person: float(index) for index, job in enumerate(workload.jobs)}
    usage = Usage(persons, dict.fromkeys(workload.teams, 0.0))
    return View(
        float(waiting + len(held)), nodes, workload.teams, tuple(islice(jobs, waiting)), tuple(held), (), usage, Rules()
    )


def planning_ms(policy: Policy, view: View) -> dict[str, float]:
    """Return the median CPU time of a decision in milliseconds, `cold` for new objects of jobs and `warm` for old ones.

    The gateway keeps the objects of waiting jobs from plan to plan, so its plans are warm but for the first.
    """
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(_REPETITIONS):
        fresh = replace(view, waiting=tuple(replace(job, request=replace(job.request)) for job in view.waiting))
        for taken in times.values():
            begun = time.process_time()
            policy.decide(fresh)
            taken.append(time.process_time() - begun)
    return {kind: 1000 * statistics.median(taken) for kind, taken in times.items()}


def _endless(workload: Workload) -> Iterator[Job]:
    """Yield the workload's jobs again and again, under new names, one per second."""
    for index, job in enumerate(cycle(workload.jobs)):
        yield replace(job, id=f"{job.id}-{index}", arrived=float(index))
