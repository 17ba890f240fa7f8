"""Discrete-event simulation of a cluster whose queue a policy runs; time is that of the events, never the clock's."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from placement import place
from usage import Meters
from workload import Job, Workload, running

from mlplatform.scheduling.queue import (
    Action,
    Ask,
    Claim,
    Hold,
    Notice,
    Release,
    Rules,
    RunningJob,
    Start,
    View,
    WaitingJob,
)
from mlplatform.scheduling.resources import Node

UNSAVED = 0.2
"""Share of notices after which a job has no new checkpoint: a script that does not react, or is in its first epoch."""

MOST_LOST_S = 1800.0
"""Age of the last checkpoint of such a job: uniform up to half an hour."""

RESTART_S = 60.0
"""Time that a job needs after a preemption until it trains again: imports, process group, checkpoint."""


class Policy(Protocol):
    """A queue; it may keep nothing between two calls except what it derives from views."""

    @property
    def name(self) -> str: ...

    @property
    def timed(self) -> bool:
        """Return whether time alone may change its decisions, without a job that arrives, leaves or ends."""
        ...

    def decide(self, view: View) -> Sequence[Action]: ...


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
    decisions: int = 0
    longest_decision_s: float = 0.0
    decisions_s: float = 0.0
    most_waiting: int = 0


@dataclass
class _Run:
    """An attempt that is running."""

    view: RunningJob
    overhead_s: float
    """Time at its start in which it does not train."""


@dataclass(frozen=True)
class _Reaction:
    """A job's reaction to a notice: seconds of work that it has not saved, and the time at which it leaves."""

    lost_s: float
    leaves: float


@dataclass
class _State:
    """Progress of a job between its attempts."""

    job: Job
    outcome: Outcome
    remaining_s: float
    queued_since: float
    attempts: int = 0


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
        self._running: dict[str, _Run] = {}
        self._claims: dict[str, Claim] = {}
        self._states: dict[str, _State] = {}
        self._jobs = {job.id: job for job in workload.jobs}
        self._sequence = {job.id: index for index, job in enumerate(workload.jobs)}
        self._meters = Meters(workload.teams)
        self._result = Result(policy.name, workload, [])

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
        self._result.outcomes = [self._states[job.id].outcome for job in self._workload.jobs]
        return self._result

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
        outcome = self._states[job_id].outcome
        outcome.lost_s += self._stop(job_id).overhead_s
        outcome.ended = self._now
        return True

    def _leave(self, job_id: str, attempt: int) -> bool:
        """End a preempted attempt: what it saved counts, and it keeps its place in the queue."""
        if not self._is_attempt(job_id, attempt):
            return False
        run, state = self._stop(job_id), self._states[job_id]
        notice = run.view.notice
        assert notice is not None, "Only a notice ends an attempt early."
        if not notice.claimant:
            state.outcome.reached_limit, state.outcome.ended = True, self._now
            return True
        ran = self._now - run.view.started
        trained = max(0.0, ran - run.overhead_s)
        lost = min(self._reaction(job_id, attempt, notice).lost_s, trained)
        state.remaining_s -= trained - lost
        state.outcome.lost_s += min(ran, run.overhead_s) + lost
        state.outcome.preemptions += 1
        state.queued_since = self._now
        self._enqueue(state)
        return True

    def _look(self, job_id: str, attempt: int) -> bool:
        """Let the policy decide, since a time that matters to it has passed."""
        return self._policy.timed and (job_id in self._waiting or self._is_attempt(job_id, attempt))

    # --- Actions ---

    def _decide(self) -> None:
        view = self._view()
        begun = time.perf_counter()
        actions = self._policy.decide(view)
        took = time.perf_counter() - begun
        result = self._result
        result.decisions += 1
        result.decisions_s += took
        result.longest_decision_s = max(result.longest_decision_s, took)
        result.most_waiting = max(result.most_waiting, len(self._waiting))
        for action in actions:
            match action:
                case Start():
                    self._start(action.job)
                case Ask():
                    self._ask(action)
                case Hold():
                    self._claims[action.claim.job] = action.claim
                    self._at(action.claim.deadline + self._rules.hold_back_s, self._look, action.claim.job)
                case Release():
                    self._claims.pop(action.job, None)

    def _start(self, job_id: str) -> None:
        waiting, state = self._waiting.pop(job_id), self._states[job_id]
        placement = place(waiting.request, self._workload.nodes, self._free)
        assert placement, f"{self._policy.name} started {job_id}, which does not fit."
        for node, amounts in placement.items():
            for name, value in amounts.items():
                self._free[node][name] -= value
        self._claims.pop(job_id, None)
        state.attempts += 1
        if state.outcome.first_start is None:
            state.outcome.first_start = self._now
        state.outcome.waited_s += self._now - state.queued_since
        overhead = RESTART_S if state.outcome.preemptions else 0.0
        job = state.job
        view = running(waiting, placement, self._now)
        self._running[job_id] = _Run(view, overhead)
        self._meters.started(self._now, job)
        self._at(self._now + overhead + state.remaining_s, self._finish, job_id)
        if view.ends_by is not None:
            self._at(view.ends_by, self._look, job_id)

    def _ask(self, ask: Ask) -> None:
        run = self._running[ask.job]
        assert run.view.notice is None, f"{self._policy.name} asked {ask.job} twice to leave."
        notice = Notice(ask.deadline, ask.claimant)
        run.view = replace(run.view, notice=notice)
        self._at(self._reaction(ask.job, self._states[ask.job].attempts, notice).leaves, self._leave, ask.job)

    # --- State ---

    def _reaction(self, job_id: str, attempt: int, notice: Notice) -> _Reaction:
        """Draw a job's reaction to a notice, from its name and attempt only: the same in every policy."""
        chance = random.Random(f"{self._workload.seed}:{job_id}:{attempt}")  # noqa: S311 (a simulation)
        unsaved, part = chance.random() < UNSAVED, chance.random()
        if unsaved or not notice.claimant:
            return _Reaction(part * MOST_LOST_S, notice.deadline)
        return _Reaction(0.0, self._now + (0.1 + 0.9 * part) * max(0.0, notice.deadline - self._now))

    def _enqueue(self, state: _State) -> None:
        job = state.job
        self._at(self._now + self._rules.overdue_s, self._look, job.id)
        self._waiting[job.id] = job.waiting(self._sequence[job.id], state.queued_since)

    def _stop(self, job_id: str) -> _Run:
        run = self._running.pop(job_id)
        for node, amounts in run.view.placement.items():
            for name, value in amounts.items():
                self._free[node][name] += value
        self._meters.stopped(self._now, self._jobs[job_id])
        return run

    def _is_attempt(self, job_id: str, attempt: int) -> bool:
        return job_id in self._running and self._states[job_id].attempts == attempt

    def _is_entitled(self, job: Job) -> bool:
        held = sum(self._jobs[other].gpus for other in self._running if self._jobs[other].team == job.team)
        promised = sum(
            self._jobs[other].gpus
            for other in self._waiting
            if self._jobs[other].team == job.team and self._states[other].outcome.entitled
        )
        return held + promised + job.gpus <= self._workload.teams[job.team].gpus

    def _view(self) -> View:
        nodes = tuple(Node(node.name, True, node.total, dict(self._free[node.name])) for node in self._workload.nodes)
        return View(
            now=self._now,
            nodes=nodes,
            teams=self._workload.teams,
            waiting=tuple(self._waiting.values()),
            running=tuple(run.view for run in self._running.values()),
            claims=tuple(self._claims.values()),
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
