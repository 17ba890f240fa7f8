"""Discrete-event simulation of a cluster whose queue a policy runs; time is that of the events, never the clock's."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from policies import Policy
from usage import Meters
from workload import Job, Workload, running

from mlplatform.capacity.resources import Node
from mlplatform_gateway.queue.planner.queue import (
    Notice,
    Placement,
    Preempt,
    Reserve,
    Rules,
    RunningJob,
    Start,
    View,
    WaitingJob,
)
from mlplatform_gateway.queue.planner.state import SENIOR_PART

UNSAVED = 0.2
"""Share of notices after which a job has no new checkpoint: a script that does not react, or is in its first epoch."""

MOST_LOST_S = 1800.0
"""Age of the last checkpoint of such a job: uniform up to half an hour."""

RESTART_S = 60.0
"""Time that a job needs after a preemption until it trains again: imports, process group, checkpoint."""


@dataclass
class Outcome:
    """Times of one job in a simulation, in seconds."""

    job: Job
    entitled: bool
    """It arrived while its team's running jobs, entitled waiting jobs and itself fitted into the team's share."""

    first_start: float | None = None
    ended: float | None = None
    waited_s: float = 0.0
    """All time in the queue, that after preemptions included."""

    preemptions: int = 0
    lost_s: float = 0.0
    """Work that ran and was not saved, and restarts."""

    reached_limit: bool = False

    @property
    def first_wait_s(self) -> float:
        assert self.first_start is not None, f"{self.job.id} never started"
        return self.first_start - self.job.arrived

    @property
    def completion_s(self) -> float:
        assert self.ended is not None, f"{self.job.id} never ended"
        return self.ended - self.job.arrived


@dataclass
class Result:
    """All outcomes of one policy on one workload."""

    policy: str
    workload: Workload
    outcomes: list[Outcome]


@dataclass
class _State:
    """Progress of a job between its attempts."""

    job: Job
    outcome: Outcome
    remaining_s: float
    queued_since: float
    attempts: int = 0
    overhead_s: float = 0.0
    """Time at the start of the attempt in which it does not train."""


def place(gpus: int, free: Mapping[str, Mapping[str, float]]) -> Placement | None:
    """Return the amounts that workers of one GPU take from each node as Ray packs them; None if they do not fit.

    They go to the fullest node that holds them all; if there is none, to the emptiest nodes.
    """
    by_room = sorted(free, key=lambda name: (free[name]["GPU"], name))
    whole = next((name for name in by_room if free[name]["GPU"] >= gpus), None)
    placement: dict[str, dict[str, float]] = {}
    for name in [whole] if whole else reversed(by_room):
        if count := min(float(gpus), free[name]["GPU"]):
            placement[name] = {"CPU": count, "GPU": count}
            gpus -= int(count)
    return None if gpus else placement


class Simulation:
    """One policy on one workload.

    Raises:
        AssertionError: the policy started a job that does not fit or does not wait, or left jobs waiting for good.
    """

    def __init__(self, workload: Workload, policy: Policy, rules: Rules) -> None:
        self._workload, self._policy, self._rules = workload, policy, rules
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[str, int], bool], str, int]] = []
        self._count = 0
        self._free: dict[str, dict[str, float]] = {node.name: dict(node.total) for node in workload.nodes}
        self._waiting: dict[str, WaitingJob] = {}
        self._running: dict[str, RunningJob] = {}
        self._states: dict[str, _State] = {}
        self._jobs = {job.id: job for job in workload.jobs}
        self._sequence = {job.id: index for index, job in enumerate(workload.jobs)}
        self._meters = Meters(workload.teams)

    def run(self) -> Result:
        """Run until the last job has ended."""
        for job in self._workload.jobs:
            self._at(job.arrived, self._arrive, job.id)
        while self._events:
            self._now = self._events[0][0]
            changed = False
            while self._events and self._events[0][0] == self._now:
                _, _, happen, job_id, attempt = heapq.heappop(self._events)
                changed |= happen(job_id, attempt)
            if changed and self._waiting:
                self._decide()
        assert not self._running, "Jobs run, but no event ends them."
        assert not self._waiting, f"{len(self._waiting)} jobs wait for good, {min(self._waiting)} first."
        outcomes = [self._states[job.id].outcome for job in self._workload.jobs]
        return Result(self._policy.name, self._workload, outcomes)

    # --- Events: each returns whether anything changed. It is void if the job has begun or ended an attempt since. ---

    def _arrive(self, job_id: str, _: int) -> bool:
        job = self._jobs[job_id]
        outcome = Outcome(job, self._is_entitled(job))
        self._states[job_id] = _State(job, outcome, job.duration_s, self._now)
        self._enqueue(self._states[job_id])
        return True

    def _finish(self, job_id: str, attempt: int) -> bool:
        if not self._is_attempt(job_id, attempt):
            return False
        self._stop(job_id)
        state = self._states[job_id]
        state.outcome.lost_s += state.overhead_s
        state.outcome.ended = self._now
        return True

    def _leave(self, job_id: str, attempt: int) -> bool:
        """End a preempted attempt: what it saved counts, and it keeps its place in the queue."""
        if not self._is_attempt(job_id, attempt):
            return False
        job, state = self._stop(job_id), self._states[job_id]
        notice = job.notice
        assert notice is not None, "Only a notice ends an attempt early."
        if not notice.claimant:
            state.outcome.reached_limit, state.outcome.ended = True, self._now
            return True
        ran = self._now - job.started
        trained = max(0.0, ran - state.overhead_s)
        lost = min(self._reaction(job_id, attempt, notice)[0], trained)
        state.remaining_s -= trained - lost
        state.outcome.lost_s += min(ran, state.overhead_s) + lost
        state.outcome.preemptions += 1
        state.queued_since = self._now
        self._enqueue(state)
        return True

    def _look(self, job_id: str, attempt: int) -> bool:
        """Let the policy decide, since a time that matters to it has passed."""
        return self._policy.timed and (job_id in self._waiting or self._is_attempt(job_id, attempt))

    # --- Actions ---

    def _decide(self) -> None:
        for action in self._policy.decide(self._view()):
            match action:
                case Start():
                    self._start(action.job)
                case Preempt():
                    self._ask(action)
                case Reserve():
                    self._waiting[action.job] = replace(self._waiting[action.job], reserved=action)
                    self._at(action.deadline + self._rules.hold_back_s, self._look, action.job)

    def _start(self, job_id: str) -> None:
        waiting, state = self._waiting.pop(job_id), self._states[job_id]
        placement = place(state.job.gpus, self._free)
        assert placement, f"{self._policy.name} started {job_id}, which does not fit."
        for node, amounts in placement.items():
            for name, value in amounts.items():
                self._free[node][name] -= value
        state.attempts += 1
        if state.outcome.first_start is None:
            state.outcome.first_start = self._now
        state.outcome.waited_s += self._now - state.queued_since
        state.overhead_s = RESTART_S if state.outcome.preemptions else 0.0
        self._running[job_id] = job = running(waiting, placement, self._now)
        self._meters.change(self._now, state.job, 1)
        self._at(self._now + state.overhead_s + state.remaining_s, self._finish, job_id)
        if job.ends_by is not None:
            self._at(job.ends_by, self._look, job_id)

    def _ask(self, ask: Preempt) -> None:
        job = self._running[ask.job]
        assert job.notice is None, f"{self._policy.name} asked {ask.job} twice to leave."
        notice = Notice(ask.deadline, ask.claimant)
        self._running[ask.job] = replace(job, notice=notice)
        _, leaves = self._reaction(ask.job, self._states[ask.job].attempts, notice)
        self._at(leaves, self._leave, ask.job)

    # --- State ---

    def _reaction(self, job_id: str, attempt: int, notice: Notice) -> tuple[float, float]:
        """Draw the seconds of work that a job has not saved at a notice, and the time at which it leaves.

        They depend on its name and attempt only, so they are the same in every policy.
        """
        chance = random.Random(f"{self._workload.seed}:{job_id}:{attempt}")  # noqa: S311 (a simulation)
        unsaved, part = chance.random() < UNSAVED, chance.random()
        if unsaved or not notice.claimant:
            return part * MOST_LOST_S, notice.deadline
        return 0.0, self._now + (0.1 + 0.9 * part) * max(0.0, notice.deadline - self._now)

    def _enqueue(self, state: _State) -> None:
        job = state.job
        for part in (1, SENIOR_PART):
            self._at(self._now + self._rules.overdue_s / part, self._look, job.id)
        self._waiting[job.id] = job.waiting(self._sequence[job.id], state.queued_since)

    def _stop(self, job_id: str) -> RunningJob:
        job = self._running.pop(job_id)
        for node, amounts in job.placement.items():
            for name, value in amounts.items():
                self._free[node][name] += value
        self._meters.change(self._now, self._jobs[job_id], -1)
        return job

    def _is_attempt(self, job_id: str, attempt: int) -> bool:
        return job_id in self._running and self._states[job_id].attempts == attempt

    def _is_entitled(self, job: Job) -> bool:
        entitled = [other for other in self._waiting if self._states[other].outcome.entitled]
        ours = [self._jobs[other] for other in (*self._running, *entitled) if self._jobs[other].team == job.team]
        return sum(other.gpus for other in ours) + job.gpus <= self._workload.teams[job.team].gpus

    def _view(self) -> View:
        nodes = tuple(Node(node.name, True, node.total, dict(self._free[node.name])) for node in self._workload.nodes)
        return View(
            now=self._now,
            nodes=nodes,
            teams=self._workload.teams,
            waiting=tuple(self._waiting.values()),
            running=tuple(self._running.values()),
            usage=self._meters.at(self._now),
            rules=self._rules,
        )

    def _at(self, when: float, happen: Callable[[str, int], bool], job_id: str) -> None:
        self._count += 1
        attempt = self._states[job_id].attempts if job_id in self._states else 0
        heapq.heappush(self._events, (when, self._count, happen, job_id, attempt))


def simulate(workload: Workload, policy: Policy, rules: Rules | None = None) -> Result:
    """Run a policy on a workload until every job has ended."""
    return Simulation(workload, policy, rules or Rules()).run()
