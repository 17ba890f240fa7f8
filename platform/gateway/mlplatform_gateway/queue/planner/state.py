"""State of the queue while a plan is made: a view to which the plan's own actions are applied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import replace
from enum import IntEnum
from operator import attrgetter

from mlplatform.capacity.resources import Node
from mlplatform_gateway.queue.planner import reasons
from mlplatform_gateway.queue.planner.queue import (
    Action,
    JobClass,
    Notice,
    Placement,
    Preempt,
    Reserve,
    RunningJob,
    Start,
    View,
    WaitingJob,
)
from mlplatform_gateway.queue.planner.room import Room
from mlplatform_gateway.queue.planner.shares import Shares

SENIOR_PART = 6
"""Part of `overdue_s` after which a job precedes the later ones of its team: 12 h of three days.

The figures are a prototype's, which counted GPUs alone and is not kept. Without this, the 99th percentile of the waits
of jobs with 8 GPUs or more was 1.45 of Kueue-like's on workloads 101, 103 to 106 and 110, with 24 h 1.02, with 12 h
0.81; the mean completion was 0.92, 0.90 and 0.94 of the best other policy's. If jobs were overdue after 12 h
altogether, it was 7.88 h on Philly's sample 2, instead of 6.73 h, and the worst rho 1.20 instead of 1.00; if they never
were, large jobs waited for 438 h on sample 1 instead of 250 h.
"""

USE_SCALE = 400 * 3600.0
"""GPU-seconds of past use that double a job's cost: eight GPUs for two days, the half-life. In the prototype, the mean
completion was 0.938 of the best other policy's on the workloads of `SENIOR_PART`, with a quarter of it 0.955."""

LAGS = 10
"""Times `hold_back_s` after which Ray may lag again: room is held for a job while Ray does not report it as free, and
if that lasts, a program outside of jobs holds it."""


class Age(IntEnum):
    """Kind of a waiting job, by how long it has waited; jobs of one kind keep their order while a plan is made."""

    NEW = 0
    SENIOR = 1
    OVERDUE = 2
    YIELDS = 3
    RESERVED = 4
    """Others leave for it, or have left."""


Line = tuple[Hashable, Age]
"""Key of the waiting jobs that the planner treats alike but for their arrival."""

Group = tuple[str, Hashable, Hashable]
"""Team and shape of jobs, and their kind."""


class State:
    """A view that changes with each action.

    Attributes:
        waiting: waiting jobs by id, in the order of arrival.
        arrivals: the same for each team, with those that have been started since.
        lines: the waiting jobs, those together that the planner treats alike but for their arrival.
        groups: the lines of jobs that fit in the same places, each in the order in which they are considered.
        teams: running jobs by team, as they were before notices.
        empty: what the living nodes have.
        own: what the running jobs leave free of that.
        ray: what Ray reports as free, less what has been started since.
        free: what is free by both accounts.
        later: what is free by our own accounts once all have left that do.
        certain: what is free by both accounts, and what others leave.
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
        self.shares = Shares(view.teams, view.nodes)
        self.waiting = {job.id: job for job in sorted(view.waiting, key=attrgetter("sequence"))}
        self.arrivals: dict[str, list[WaitingJob]] = defaultdict(list)
        self.lines: dict[Line, list[WaitingJob]] = defaultdict(list)
        for job in self.waiting.values():
            self.arrivals[job.team].append(job)
            self.lines[self.line(job)].append(job)
        self.running: dict[str, RunningJob] = {}
        self.teams: dict[str, list[RunningJob]] = defaultdict(list)
        self.empty = Room(view.nodes, {node.name: node.total for node in view.nodes if node.alive})
        self.own = self.empty.copy()
        self.ray = Room(view.nodes, {node.name: node.available(True) for node in view.nodes})
        for running in view.running:
            self._run(running)
        self.free, self.later = self.own.within(self.ray), self.own.copy()
        self.certain = self.free.copy()
        for running in self.leaving():
            self._leave(running)
        self.groups: dict[Group, list[Line]] = {}
        self._most: dict[str, list[float]] = {}
        for line, (first, *_) in self.lines.items():
            self._group(line, first)
        for group in self.groups:
            self._sort(group)

    def most(self, job: WaitingJob) -> float:
        """Return the largest cost of a more urgent class of a job's team that can run, or of the job itself.

        No job precedes one of a more urgent class of its team.
        """
        if job.team not in self._most:
            costs = [[0.0] for _ in JobClass]
            for line in self.lines.values():
                if line and line[0].team == job.team and self.empty.place(line[0].request) is not None:
                    costs[line[0].job_class.order].append(self.cost(line[0]))
            self._most[job.team] = [max(map(max, costs[:order]), default=0.0) for order in range(len(JobClass))]
        return max(self.cost(job), self._most[job.team][job.job_class.order])

    def _groups(self, line: Line, job: WaitingJob) -> list[Group]:
        """Return the groups of a line: a senior job is considered as such, and then as any other."""
        kinds = {Age.SENIOR: (Age.SENIOR, Age.NEW), Age.RESERVED: (job.id,)}
        return [(job.team, job.request.shape, kind) for kind in kinds.get(line[1], (line[1],))]

    def _group(self, line: Line, job: WaitingJob) -> None:
        for group in self._groups(line, job):
            self.groups.setdefault(group, []).append(line)

    def _sort(self, group: Group) -> None:
        """Restore the order of a group's lines after the first job of one has left it."""
        lines = self.groups[group] = [line for line in self.groups[group] if self.lines[line]]
        lines.sort(key=lambda line: self.order(self.lines[line][0], group[2] in (Age.SENIOR, Age.OVERDUE)))

    def line(self, job: WaitingJob) -> Line:
        """Return the line of a job: of those that wait for long, jobs that have been preempted lately are not first."""
        age = Age.NEW
        if job.reserved:
            age = Age.RESERVED
        elif job.yields_until > self.now:
            age = Age.YIELDS
        elif self.is_overdue(job):
            age = Age.OVERDUE
        elif self.is_senior(job) and not self.shares.alone:
            age = Age.SENIOR
        return job.line, age

    def order(self, job: WaitingJob, is_old: bool) -> tuple[float, ...]:
        """Return what orders the jobs of a team: the arrival, or before it the class, the cost and the past use."""
        return (
            (0.0, job.sequence) if is_old else (1.0, job.job_class.order, self.cost(job), self.used(job), job.sequence)
        )

    def cost(self, job: WaitingJob) -> float:
        """Return a job's work, which counts for more the more its person has used lately; 0 where one team is alone."""
        return 0.0 if self.shares.alone else job.work * (1 + self.used(job) / USE_SCALE)

    def _run(self, job: RunningJob) -> None:
        self.running[job.id] = job
        self.teams[job.team].append(job)
        self.own.take(job.placement)
        self.shares.add(job)

    def _leave(self, job: RunningJob) -> None:
        self.later.give(job.placement)
        self.certain.give(job.placement)

    def apply(self, action: Action) -> None:
        """Change the state as executing an action will change it."""
        match action:
            case Start():
                job = self.waiting.pop(action.job)
                self._remove(job)
                self._most.pop(job.team, None)
                owner = job.id, job.sequence, job.team, job.person, job.job_class
                ends_by = None if job.limit_s is None else self.now + job.limit_s
                self._run(RunningJob(*owner, job.request, action.placement, self.now, ends_by, group=job.group))
                for room in (self.ray, self.free, self.later, self.certain):
                    room.take(action.placement)
            case Preempt():
                notice = Notice(action.deadline, action.claimant)
                self.running[action.job] = replace(self.running[action.job], notice=notice)
                self._leave(self.running[action.job])
            case Reserve():
                self._remove(self.waiting[action.job])
                self.waiting[action.job] = job = replace(self.waiting[action.job], reserved=action)
                line = self.line(job)
                self.lines[line] = [job]
                self._group(line, job)

    def _remove(self, job: WaitingJob) -> None:
        line = self.line(job)
        self.lines[line].remove(job)
        for group in self._groups(line, job):
            self._sort(group)

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

    def lags(self, job: WaitingJob) -> bool:
        """Return whether a job's room has lately been held for long enough, and Ray has not reported it as free."""
        kept = job.reserved
        return bool(kept and not self.reserved(job) and self.now <= kept.deadline + LAGS * self.rules.hold_back_s)

    def could_run(self, job: WaitingJob) -> bool:
        """Return whether a job could run if nothing else did."""
        alone = Shares(self.view.teams, self.view.nodes)
        return self.empty.place(job.request) is not None and reasons.cap(job, alone) is None

    def staying(self) -> list[RunningJob]:
        """Return the jobs that were not preempted."""
        return [job for job in self.running.values() if job.notice is None]

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
        """Return whether a job has waited for so long that borrowers are preempted for it; not beyond a budget."""
        return job.since + self.rules.overdue_s <= self.now and not self.view.teams[job.team].spent


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
