"""State of the queue while a plan is made: a view to which the plan's own actions are applied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import replace
from operator import attrgetter

from mlplatform.capacity.resources import Node
from mlplatform_gateway.queue.planner.queue import (
    Action,
    Notice,
    Placement,
    Preempt,
    Release,
    Reserve,
    RunningJob,
    Start,
    View,
    WaitingJob,
)
from mlplatform_gateway.queue.planner.room import Room


class State:
    """A view that changes with each action.

    Attributes:
        arrivals: each team's waiting jobs in the order of arrival, also those that have been started since.
        lines: the same, but those together that the planner treats alike but for their arrival.
        ray: what Ray reports as free, less what has been started since.
    """

    def __init__(self, view: View) -> None:
        """Index a view, which is not changed.

        Args:
            view: what is known.
        """
        self.view = view
        self.now = view.now
        self.rules = view.rules
        self.arrivals: dict[str, list[WaitingJob]] = defaultdict(list)
        self.lines: dict[Hashable, list[WaitingJob]] = defaultdict(list)
        for job in sorted(view.waiting, key=attrgetter("sequence")):
            self.arrivals[job.team].append(job)
            self.lines[job.line].append(job)
        self.waiting = {job.id: job for job in view.waiting}
        self.running = {job.id: job for job in view.running}
        self.claims = {claim.job: claim for claim in view.claims}
        self.ray = Room(view.nodes, {node.name: node.available(True) for node in view.nodes})

    def apply(self, action: Action) -> None:
        """Change the state as executing an action will change it."""
        match action:
            case Start():
                job = self.waiting.pop(action.job)
                self.running[job.id] = _started(job, action.placement, self.now)
                self.claims.pop(job.id, None)
                self.ray.take(action.placement)
            case Preempt():
                notice = Notice(action.deadline, action.claimant)
                self.running[action.job] = replace(self.running[action.job], notice=notice)
            case Reserve():
                self.claims[action.claim.job] = action.claim
            case Release():
                self.claims.pop(action.job, None)

    def is_leaving(self, job: RunningJob) -> bool:
        """Return whether a job will leave soon: it was preempted, and is not stuck."""
        return job.notice is not None and self.now <= job.notice.deadline + self.rules.hold_back_s

    def leaving(self) -> list[RunningJob]:
        """Return the jobs that will leave soon, in the order of their deadlines."""
        found = [(job.notice.deadline, job.sequence, job) for job in self.running.values() if job.notice]
        return [job for *_, job in sorted(found) if self.is_leaving(job)]

    def staying(self) -> list[RunningJob]:
        """Return the jobs that were not preempted."""
        return [job for job in self.running.values() if job.notice is None]

    def is_overdue(self, job: WaitingJob) -> bool:
        """Return whether a job has waited for so long that borrowers are preempted for it."""
        return job.since + self.rules.overdue_s <= self.now


def execute(view: View, actions: Iterable[Action]) -> View:
    """Return the view after actions were executed at its time, with the placements that the planner chose."""
    state = State(view)
    for action in actions:
        state.apply(action)
    return replace(
        view,
        nodes=with_free(view.nodes, state.ray),
        waiting=tuple(state.waiting.values()),
        running=tuple(state.running.values()),
        claims=tuple(state.claims.values()),
    )


def with_free(nodes: Iterable[Node], room: Room) -> tuple[Node, ...]:
    """Return nodes of which a room is free."""
    return tuple(replace(node, free=room.free[node.name]) for node in nodes)


def _started(job: WaitingJob, placement: Placement, now: float) -> RunningJob:
    owner = job.id, job.sequence, job.team, job.person, job.job_class
    ends_by = None if job.limit_s is None else now + job.limit_s
    return RunningJob(*owner, job.request, placement, now, ends_by, group=job.group)
