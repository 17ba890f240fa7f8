"""Nodes, teams and jobs of the tests of the planner."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from mlplatform.capacity.resources import Node, Request, Resources, WorkerGroup
from mlplatform_gateway.queue.planner.queue import (
    Action,
    Explain,
    JobClass,
    Preempt,
    Reserve,
    RunningJob,
    Start,
    Team,
    View,
    WaitingJob,
)
from mlplatform_gateway.queue.planner.room import Room
from mlplatform_gateway.queue.planner.round import Round
from mlplatform_gateway.queue.planner.state import State

NOW = 1_000_000.0
GRACE = 120.0
HOUR = 3600.0

_numbers = count(1)


def node(name: str, gpus: float = 8, cpus: float = 64, alive: bool = True) -> Node:
    total = {"CPU": cpus, "GPU": gpus}
    return Node(name, alive, total, total)


def workers(count: int) -> Request:
    """A request of workers with a GPU each."""
    return Request(Resources(), WorkerGroup(count, cpus=1, gpus=1))


def job(name: str, team: str = "default", request: Request | float = 1, **more: Any) -> WaitingJob:
    """A waiting job; a number requests as many GPUs on one node."""
    asked = request if isinstance(request, Request) else Request(Resources(gpus=request))
    person, job_class = more.pop("person", f"{team}-person"), more.pop("job_class", JobClass.NORMAL)
    since = more.pop("since", NOW)
    return WaitingJob(name, more.pop("sequence", next(_numbers)), team, person, job_class, asked, since, **more)


def runs(name: str, team: str = "default", where: Mapping[str, float] | None = None, **more: Any) -> RunningJob:
    """A running job with GPUs by node; it began ten hours ago."""
    placement = {node: {"GPU": gpus} for node, gpus in (where or {"n0": 1}).items()}
    person, job_class = more.pop("person", f"{team}-person"), more.pop("job_class", JobClass.NORMAL)
    asked = more.pop("request", Request(Resources(gpus=sum(part["GPU"] for part in placement.values()))))
    started, sequence = more.pop("started", NOW - 10 * HOUR), more.pop("sequence", next(_numbers))
    return RunningJob(name, sequence, team, person, job_class, asked, placement, started, **more)


def view(
    nodes: Sequence[Node],
    waiting: Sequence[WaitingJob] = (),
    running: Sequence[RunningJob] = (),
    teams: Sequence[Team] = (Team("default", 0, 0),),
    **more: Any,
) -> View:
    """A view in which Ray's free resources are those that no running job holds."""
    free = {one.name: dict(one.free) for one in nodes}
    for holder in running:
        for name, part in holder.placement.items():
            for key, value in part.items():
                free[name][key] -= value
    counted = [Node(one.name, one.alive, one.total, free[one.name], one.labels) for one in nodes]
    now = more.pop("now", NOW)
    return View(now, counted, {team.name: team for team in teams}, tuple(waiting), tuple(running), **more)


def started(actions: Sequence[Action]) -> list[str]:
    return [action.job for action in actions if isinstance(action, Start)]


def preempted(actions: Sequence[Action]) -> list[str]:
    return [action.job for action in actions if isinstance(action, Preempt)]


def reserved(actions: Sequence[Action]) -> list[str]:
    return [action.job for action in actions if isinstance(action, Reserve)]


def explained(actions: Sequence[Action], name: str) -> Explain:
    return next(action for action in actions if isinstance(action, Explain) and action.job == name)


def rules(actions: Sequence[Action], name: str) -> set[str]:
    return {reason.rule.value for reason in explained(actions, name).reasons}


def effects(actions: Sequence[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, Explain)]


def settled(view: View) -> Round:
    """Return the last round of a plan, in which nothing is left to do."""
    state = State(view)
    while (last := Round(state)).actions:
        pass
    return last


def promised(view: View) -> set[str]:
    """Return the jobs that wait for others to leave, or for Ray, once a plan has been executed."""
    return set(settled(view).promises)


def left(view: View, name: str) -> View:
    """Return the view after a running job has left."""
    job = next(job for job in view.running if job.id == name)
    free = Room(view.nodes, {node.name: node.free for node in view.nodes})
    free.give(job.placement)
    nodes = tuple(replace(node, free=free.free[node.name]) for node in view.nodes)
    return replace(view, nodes=nodes, running=tuple(one for one in view.running if one is not job))


def _place_in_share(job: RunningJob) -> tuple[bool, float, int]:
    """Return what orders the jobs of a team: those that hold more GPUs than they have requested are last."""
    gpus = sum(part.get("GPU", 0) for part in job.placement.values())
    return gpus > job.request.sums[0] + 1e-6, job.started, job.sequence


def is_beyond_share(view: View, job: RunningJob, first: Sequence[WaitingJob] = ()) -> bool:
    """Return whether a job and those of its team that precede it hold more than the team's share, as it has shrunk.

    Args:
        view: what is known.
        job: a running job.
        first: jobs of the team that have waited for so long that later ones leave the share to them.
    """
    older = [one for one in view.running if one.team == job.team and one.notice is None]
    older = [one for one in older if _place_in_share(one) <= _place_in_share(job)]
    for index, (name, share) in enumerate((("GPU", lambda team: team.gpus), ("CPU", lambda team: team.cpus))):
        promised = sum(map(share, view.teams.values()))
        there = sum(node.total[name] for node in view.nodes if node.alive)
        most = share(view.teams[job.team]) * min(1.0, there / promised if promised else 1.0)
        held = [sum(part.get(name, 0) for part in one.placement.values()) for one in older]
        held += [one.request.sums[index] for one in first]
        own = sum(part.get(name, 0) for part in job.placement.values())
        if own > 1e-6 and sum(held) > most + 1e-6:
            return True
    return False
