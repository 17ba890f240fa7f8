"""CPU time that the planner takes for 10,000 waiting jobs on a full cluster."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from itertools import cycle, islice

from engine import place
from policies import Policy
from workload import Workload, running

from mlplatform_gateway.queue.planner.queue import Rules, RunningJob, Usage, View

WAITING = 10_000

_REPETITIONS = 15


def full_view(workload: Workload, waiting: int = WAITING) -> View:
    """Return a view of the workload's cluster, filled with its first jobs, while the next ones wait."""
    free = {node.name: dict(node.total) for node in workload.nodes}
    # The workload's jobs again and again, under new names, one per second.
    jobs = (replace(job.waiting(n, n), id=f"{job.id}-{n}") for n, job in enumerate(cycle(workload.jobs)))
    held: list[RunningJob] = []
    while any(amounts["GPU"] for amounts in free.values()):
        job = next(jobs)
        workers = job.request.workers
        if placement := place(workers.count if workers else 0, free):
            held.append(running(job, placement, job.since))
            for node, amounts in placement.items():
                for name, value in amounts.items():
                    free[node][name] -= value
    nodes = tuple(replace(node, free=free[node.name]) for node in workload.nodes)
    persons = {job.person: float(index) for index, job in enumerate(workload.jobs)}
    usage = Usage(persons, dict.fromkeys(workload.teams, 0.0))
    queued, now = tuple(islice(jobs, waiting)), float(waiting + len(held))
    return View(now, nodes, workload.teams, queued, tuple(held), usage, Rules())


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
