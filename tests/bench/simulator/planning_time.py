"""Time that the planner takes for 10,000 waiting jobs on a full cluster."""

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
    jobs = (job.waiting(index) for index, job in enumerate(_endless(workload)))
    held: list[RunningJob] = []
    while room.gpus:
        job = next(jobs)
        if placement := room.take(job.request):
            held.append(running(job, placement, job.arrived))
    nodes = tuple(replace(node, free=room.free[node.name]) for node in workload.nodes)
    persons = {job.person: float(index) for index, job in enumerate(workload.jobs)}
    usage = Usage(persons, dict.fromkeys(workload.teams, 0.0))
    return View(
        float(waiting + len(held)), nodes, workload.teams, tuple(islice(jobs, waiting)), tuple(held), (), usage, Rules()
    )


def planning_ms(policy: Policy, view: View) -> float:
    """Return the median time of a decision, in milliseconds; the first one does not count."""
    policy.decide(view)
    times = []
    for _ in range(_REPETITIONS):
        begun = time.perf_counter()
        policy.decide(view)
        times.append(time.perf_counter() - begun)
    return 1000 * statistics.median(times)


def _endless(workload: Workload) -> Iterator[Job]:
    """Yield the workload's jobs again and again, under new names, one per second."""
    for index, job in enumerate(cycle(workload.jobs)):
        yield replace(job, id=f"{job.id}-{index}", arrived=float(index))
