"""State of the queue while a plan is made: a view to which the plan's own actions are applied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import replace
from operator import attrgetter

from mlplatform.scheduling.queue import Action, Notice, Placement, Preempt, Reserve, RunningJob, Start, View, WaitingJob
from mlplatform.scheduling.resources import Node
from mlplatform.scheduling.room import Room
from mlplatform.scheduling.shares import Shares

SENIOR_PART = 6
"""Part of `overdue_s` after which a job precedes the later ones of its team: 12 h of three days.

Without this, the 99th percentile of the waits of jobs with 8 GPUs or more was 1.45 of Kueue-like's on six generated
workloads, with 24 h 1.02, with 12 h 0.88; the mean completion was 0.92, 0.90 and 0.94 of the best other policy's. If
jobs were overdue after 12 h altogether, it was 7.88 h on Philly's sample 2, instead of 6.73 h, and the worst rho 1.20
instead of 1.00; if they never were, large jobs waited for 438 h on sample 1 instead of 250 h.
"""


class State:
    """A view that changes with each action.

    Attributes:
        waiting: waiting jobs by id, in the order of arrival.
        arrivals: the same for each team, with those that have been started since.
        lines: the waiting jobs, those together that the planner treats alike but for their arrival.
        costs: what orders the jobs of a line, once a round has computed it.
        empty: what the living nodes have.
        own: what the running jobs leave free of that.
        ray: what Ray reports as free, less what has been started since.
        shares: what teams and persons hold.
    """

    def __init__(self, view: View) -> None:
        """Index a view, which is not changed.

        Args:
            view: what is known.
        """
        self.view = view
        self.now = view.now
        self.rules = view.rules
        self.waiting = {job.id: job for job in sorted(view.waiting, key=attrgetter("sequence"))}
        self.arrivals: dict[str, list[WaitingJob]] = defaultdict(list)
        self.lines: dict[Hashable, list[WaitingJob]] = defaultdict(list)
        for job in self.waiting.values():
            self.arrivals[job.team].append(job)
            self.lines[job.line].append(job)
        self.costs: dict[Hashable, float] = {}
        self.running: dict[str, RunningJob] = {}
        self.empty = Room(view.nodes, {node.name: node.total for node in view.nodes if node.alive})
        self.own = self.empty.copy()
        self.ray = Room(view.nodes, {node.name: node.available(True) for node in view.nodes})
        self.shares = Shares(view.teams, view.nodes)
        for running in view.running:
            self._run(running)

    def _run(self, job: RunningJob) -> None:
        self.running[job.id] = job
        self.own.take(job.placement)
        self.shares.add(job)

    def apply(self, action: Action) -> None:
        """Change the state as executing an action will change it."""
        match action:
            case Start():
                job = self.waiting.pop(action.job)
                self.lines[job.line].remove(job)
                owner = job.id, job.sequence, job.team, job.person, job.job_class
                ends_by = None if job.limit_s is None else self.now + job.limit_s
                self._run(RunningJob(*owner, job.request, action.placement, self.now, ends_by, group=job.group))
                self.ray.take(action.placement)
            case Preempt():
                notice = Notice(action.deadline, action.claimant)
                self.running[action.job] = replace(self.running[action.job], notice=notice)
            case Reserve():
                job = self.waiting[action.job]
                self.lines[job.line].remove(job)
                self.waiting[action.job] = job = replace(job, reserved=action)
                self.lines[job.line] = [job]

    def is_leaving(self, job: RunningJob) -> bool:
        """Return whether a job will leave soon: it was preempted, and is not stuck."""
        return job.notice is not None and self.now <= job.notice.deadline + self.rules.hold_back_s

    def leaving(self) -> list[RunningJob]:
        """Return the jobs that will leave soon."""
        return [job for job in self.running.values() if self.is_leaving(job)]

    def reserved(self, job: WaitingJob) -> Reserve | None:
        """Return a job's reservation; None if it has none, or it did not start in time: the jobs there are stuck."""
        kept = job.reserved
        return kept if kept and self.now <= kept.deadline + self.rules.hold_back_s else None

    def staying(self, team: str | None = None) -> list[RunningJob]:
        """Return the jobs that were not preempted, of a team or of all."""
        return [job for job in self.running.values() if job.notice is None and team in (None, job.team)]

    def leaving_for(self, job: WaitingJob, placement: Placement) -> list[RunningJob]:
        """Return the jobs that leave the room that a job is promised: those preempted for it, or else those there."""
        leaving = self.leaving()
        named = [one for one in leaving if one.notice and one.notice.claimant == job.id]
        return named or [one for one in leaving if one.placement.keys() & placement.keys()]

    def latest_end(self, job: WaitingJob, placement: Placement) -> float:
        """Return the time at which the last job is stopped that leaves the room that a job is promised; now if none."""
        return max((one.notice.deadline for one in self.leaving_for(job, placement) if one.notice), default=self.now)

    def used(self, job: WaitingJob) -> float:
        """Return what a job's person has used lately, in GPU-seconds."""
        return self.view.usage.persons.get(job.person, 0.0)

    def is_senior(self, job: WaitingJob) -> bool:
        """Return whether a job has waited for so long that later ones of its team leave the team's share to it."""
        return job.since + self.rules.overdue_s / SENIOR_PART <= self.now

    def is_overdue(self, job: WaitingJob) -> bool:
        """Return whether a job has waited for so long that borrowers are preempted for it."""
        return job.since + self.rules.overdue_s <= self.now


def execute(view: View, actions: Iterable[Action]) -> View:
    """Return the view after actions were executed at its time, with the placements that the planner chose."""
    state = State(view)
    for action in actions:
        state.apply(action)
    nodes, waiting, running = with_free(view.nodes, state.ray), state.waiting.values(), state.running.values()
    return replace(view, nodes=nodes, waiting=tuple(waiting), running=tuple(running))


def with_free(nodes: Iterable[Node], room: Room) -> tuple[Node, ...]:
    """Return nodes of which a room is free."""
    return tuple(replace(node, free=room.free[node.name]) for node in nodes)
