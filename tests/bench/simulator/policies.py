"""Five queues: the gateway's planner, two baselines, and models of Slurm's and Kueue's.

A job's workers have one GPU each and may be on any node, so a job fits if as many GPUs are free as it asks for. The
engine places what a policy starts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

from workload import DAY

from mlplatform_gateway.queue.planner.plan import plan
from mlplatform_gateway.queue.planner.queue import Action, JobClass, Preempt, RunningJob, Start, View, WaitingJob


class Policy(Protocol):
    """A queue; it may keep nothing between two calls except what it derives from views."""

    @property
    def name(self) -> str: ...

    @property
    def timed(self) -> bool:
        """Return whether time alone may change its decisions, without a job that arrives, leaves or ends."""
        ...

    def decide(self, view: View) -> Sequence[Action]: ...


class Ours:
    """`mlplatform_gateway.queue.planner.plan.plan`, unchanged."""

    name = "ours"
    timed = True

    def decide(self, view: View) -> Sequence[Action]:
        return plan(view)


class FirstFit:
    """Start each job that fits, oldest first, without reservations or preemption: the queue up to version 0.4.

    Not modelled: `JOB_STARTS`, the number of jobs that are starting at a time.
    """

    name = "first fit"
    timed = False

    def decide(self, view: View) -> Sequence[Action]:
        free, started = _free_gpus(view), list[Action]()
        for job in sorted(view.waiting, key=lambda job: job.sequence):
            if _asked(job) <= free:
                free -= _asked(job)
                started.append(Start(job.id, False, {}))
        return started


class FifoEasy:
    """Start jobs in order of arrival with EASY backfill, the common baseline of batch schedulers.

    Modelled: the whole of Lifka's algorithm, with the jobs' time limits as estimates. The reservation is computed again
    at each decision, so a job that ends early moves it forward. Teams and persons play no part.
    """

    name = "FIFO + EASY"
    timed = False

    def decide(self, view: View) -> Sequence[Action]:
        return start_in_order(view, sorted(view.waiting, key=lambda job: job.sequence))


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

    MAX_AGE_S = 7 * DAY
    """`PriorityMaxAge`, its default."""

    FAIR_SHARE, AGE, SIZE, QOS = 10_000.0, 5_000.0, 1_000.0, 20_000.0
    """`PriorityWeight...`: Slurm has no defaults; fair share before age before size is what sites publish."""

    CLASSES = {JobClass.URGENT: 1.0, JobClass.NORMAL: 0.5, JobClass.IDLE: 0.0}  # noqa: RUF012 (a constant)
    """Our classes as QOS, whose factor is normalized to 0 to 1."""

    def __init__(self) -> None:
        self._team_of: dict[str, str] = {}

    def decide(self, view: View) -> Sequence[Action]:
        for job in (*view.waiting, *view.running):
            self._team_of[job.person] = job.team
        if not _free_gpus(view):
            return []
        fair = self._fair_tree(view)
        total = sum(node.total.get("GPU", 0.0) for node in view.nodes)

        def priority(job: WaitingJob) -> float:
            age = min(1.0, (view.now - job.since) / self.MAX_AGE_S)
            shares = self.FAIR_SHARE * fair[job.person] + self.AGE * age
            return shares + self.SIZE * _asked(job) / total + self.QOS * self.CLASSES[job.job_class]

        return start_in_order(view, sorted(view.waiting, key=lambda job: (-priority(job), job.sequence)))

    def _fair_tree(self, view: View) -> dict[str, float]:
        """Return the factor of each person: accounts by share over use, then users by the same, ranked from 1 down."""
        used: dict[str, float] = defaultdict(float)
        for person, value in view.usage.persons.items():
            used[self._team_of.get(person, "")] += value

        def order(person: str) -> tuple[float, str, float, str]:
            team = self._team_of[person]
            account, user = _level(view.teams[team].gpus, used[team]), _level(1.0, view.usage.persons.get(person, 0.0))
            return -account, team, -user, person

        ranked = sorted(self._team_of, key=order)
        return {person: 1.0 - index / len(ranked) for index, person in enumerate(ranked)}


class KueueLike:
    """Admit the heads of the teams' queues, those within quota first; take back what others have borrowed.

    Modelled: a ClusterQueue per team in one cohort, `nominalQuota` is the share, no `borrowingLimit`;
    `BestEffortFIFO`; order of a cycle (within quota, then priority, then arrival); `reclaimWithinCohort: Any` with
    classical preemption (borrowing teams only, lowest priority, then latest start, minimal set); a preemptor reserves
    room within the cycle and stays at the head of its queue (its pull request 7157), or evicted workloads would
    take the room again and again; an evicted workload keeps its time of creation.
    Not modelled: `withinClusterQueue` preemption by priority, fair sharing by dominant resource share, flavors,
    topology, `waitForPodsReady`. Evicted jobs get the same grace as ours (Kubernetes' default is 30 s).
    """

    name = "Kueue-like"
    timed = False

    def __init__(self) -> None:
        self._sticky: set[str] = set()

    def decide(self, view: View) -> Sequence[Action]:
        self._sticky &= {job.id for job in view.waiting}
        actions = _Cycle(view, self._sticky).actions()
        self._sticky |= {action.claimant for action in actions if isinstance(action, Preempt)}
        return actions


class _Cycle:
    """One decision of `KueueLike`: cycles of heads until no queue has a workload left."""

    PRIORITY = {JobClass.URGENT: 0, JobClass.NORMAL: 1, JobClass.IDLE: 2}  # noqa: RUF012 (a constant)

    def __init__(self, view: View, sticky: set[str]) -> None:
        self._view, self._sticky = view, sticky
        self._free = _free_gpus(view)
        self._reserved = 0.0
        self._used: dict[str, float] = defaultdict(float)
        for job in view.running:
            self._used[job.team] += _held(job)
        self._leaving = sum(_held(job) for job in view.running if job.notice)
        self._asked: set[str] = set()

    def actions(self) -> list[Action]:
        def order(job: WaitingJob) -> tuple[str, bool, int, int]:
            return job.team, job.id not in self._sticky, self.PRIORITY[job.job_class], job.sequence

        queued = groupby(sorted(self._view.waiting, key=order), key=lambda job: job.team)
        queues = {team: list(jobs)[::-1] for team, jobs in queued}
        found: list[Action] = []
        while heads := [queue.pop() for queue in queues.values() if queue]:
            heads.sort(key=lambda job: (self._borrows(job), self.PRIORITY[job.job_class], job.sequence))
            for job in heads:
                found += self._admit(job)
        return found

    def _borrows(self, job: WaitingJob) -> bool:
        return self._used[job.team] + _asked(job) > self._view.teams[job.team].gpus

    def _admit(self, job: WaitingJob) -> Iterator[Action]:
        asked, within = _asked(job), not self._borrows(job)
        if asked <= self._free - self._reserved:
            self._free -= asked
            self._used[job.team] += asked
            yield Start(job.id, within, {})
        elif within:
            missing = asked - (self._free + self._leaving - self._reserved)
            victims = self._victims(missing)
            if missing > 0 and not victims:
                return
            # What earlier victims leave is its own, or it would ask for more at every decision.
            self._reserved += asked
            self._used[job.team] += asked
            deadline = self._view.now + self._view.rules.grace_s
            for victim in victims:
                self._leaving += _held(victim)
                self._asked.add(victim.id)
                yield Preempt(victim.id, deadline, job.id, f"{job.team} reclaims its quota")

    def _victims(self, missing: float) -> list[RunningJob]:
        """Return a minimal set of borrowed workloads with as many GPUs as are missing; empty if there is none."""
        over = {team: self._used[team] - self._view.teams[team].gpus for team in self._used}
        candidates = [job for job in self._view.running if not job.notice and job.id not in self._asked]
        chosen: list[RunningJob] = []
        for job in sorted(candidates, key=lambda job: (-self.PRIORITY[job.job_class], -job.started, job.sequence)):
            if missing > 0 and over[job.team] > 0:
                chosen.append(job)
                over[job.team] -= _held(job)
                missing -= _held(job)
        if missing > 0:
            return []
        for job in chosen[::-1]:
            if missing + _held(job) <= 0:
                chosen.remove(job)
                missing += _held(job)
        return chosen


def start_in_order(view: View, order: Iterable[WaitingJob]) -> list[Action]:
    """Start jobs in order with EASY backfill (Lifka, "The ANL/IBM SP Scheduling System", 1995).

    The first job that does not fit gets a reservation at the time when the limits of the running jobs leave room for
    it. Later jobs start only if they end before that time or fit beside it.
    """
    free = _free_gpus(view)
    started: dict[str, tuple[float, float]] = {}
    blocked, when, beside = False, math.inf, math.inf
    for job in order:
        if free <= 0:
            break
        asked, ends = _asked(job), view.now + _or_infinite(job.limit_s)
        if asked > free:
            if not blocked:
                blocked, (when, beside) = True, _reserve(view, free, started, asked)
            continue
        if ends > when:
            if asked > beside:
                continue
            beside -= asked
        free -= asked
        started[job.id] = ends, asked
    return [Start(job, False, {}) for job in started]


def _reserve(view: View, free: float, started: dict[str, tuple[float, float]], asked: float) -> tuple[float, float]:
    """Return the time at which so many GPUs are free by the running jobs' limits, infinite if never, and those beside.

    `started` has the end and the GPUs of the jobs that this decision starts.
    """
    ends = [(_or_infinite(job.ends_by), job.id, _held(job)) for job in view.running]
    for when, _, gpus in sorted([*ends, *((when, job, gpus) for job, (when, gpus) in started.items())]):
        free += gpus
        if free >= asked:
            return when, free - asked
    return math.inf, free


def _free_gpus(view: View) -> float:
    return sum(node.free.get("GPU", 0.0) for node in view.nodes)


def _asked(job: WaitingJob) -> float:
    workers = job.request.workers
    return workers.count * workers.gpus if workers else 0.0


def _held(job: RunningJob) -> float:
    return sum(amounts.get("GPU", 0.0) for amounts in job.placement.values())


def _level(share: float, used: float) -> float:
    """Return Fair Tree's level fair share: infinite for who has used nothing."""
    return share / used if used > 0 else math.inf


def _or_infinite(time: float | None) -> float:
    return math.inf if time is None else time
