"""Starts within shares, followed by the clock: no later than the grace and the time after which a victim is stuck.

What a team is owed is computed here from sums alone: the shares are all of the GPUs, each worker fits on any node, and
nobody stays, so whatever is within a share can be taken back, also from overdue jobs. Victims leave at any time at
which they are not stuck.
"""

import math
import random
from dataclasses import replace

import pytest
from queues import effects, left

from mlplatform.capacity.resources import Node, Request, Resources, WorkerGroup
from mlplatform_gateway.queue.planner.plan import plan
from mlplatform_gateway.queue.planner.queue import JobClass, Preempt, Rules, Team, View, WaitingJob
from mlplatform_gateway.queue.planner.state import execute

TICK_S = 10.0
TICKS = 300
RULES = Rules(grace_s=100, overdue_s=500, hold_back_s=50)
FIRST = 12
"""Histories that CI follows; `make nightly` follows more."""
SHARES = ({"a": 6, "b": 6}, {"a": 8, "b": 3, "c": 1}, {"a": 12, "b": 0}, {"a": 4, "b": 4, "c": 4})


class Clock:
    """A cluster of 12 GPUs in which each tick somebody may submit, end or leave, and the planner decides."""

    def __init__(self, number: int) -> None:
        self.chance = random.Random(number)  # noqa: S311 - reproducible
        amounts = {"CPU": 64.0, "GPU": 4.0}
        nodes = tuple(Node(f"n{i}", True, amounts, amounts) for i in range(3))
        self.teams = {name: Team(name, gpus, 0) for name, gpus in SHARES[number % len(SHARES)].items()}
        self.view = View(0.0, nodes, self.teams, rules=RULES)
        borrower = self.chance.choice(sorted(self.teams))
        self.arrivals = {name: 0.5 if name == borrower else 0.04 for name in self.teams}
        self.number = 0
        self.leaves: dict[str, float] = {}
        self.owed: dict[str, float] = {}
        self.starts = 0

    def tick(self) -> None:
        """Let time pass, plan, and compare the waits with what is owed."""
        self.view = replace(self.view, now=self.view.now + TICK_S)
        for job in self.view.running:
            if self.leaves.get(job.id, math.inf) <= self.view.now:
                self._leave(job.id)
            elif job.notice is None and self.chance.random() < 0.02:
                self.view = left(self.view, job.id)
        for team, rate in self.arrivals.items():
            if self.chance.random() < rate:
                self._submit(team)
        self._update_owed()
        actions = effects(plan(self.view))
        for action in actions:
            if isinstance(action, Preempt):
                last = action.deadline + RULES.hold_back_s
                self.leaves[action.job] = self.chance.choice([self.view.now + TICK_S, action.deadline, last])
        self.view = execute(self.view, actions)
        self._check()

    def _submit(self, team: str) -> None:
        self.number += 1
        request = Request(Resources(), WorkerGroup(self.chance.randint(1, 6), cpus=0, gpus=1))
        person, job_class = f"{team}-{self.number % 2}", self.chance.choice(list(JobClass))
        limit = self.chance.choice([None, 600.0, 3000.0])
        job = WaitingJob(f"j{self.number}", self.number, team, person, job_class, request, self.view.now, limit)
        self.view = replace(self.view, waiting=(*self.view.waiting, job))

    def _leave(self, name: str) -> None:
        """Let a job that was asked to leave do so; it waits again unless it has reached its limit."""
        del self.leaves[name]
        job = next(job for job in self.view.running if job.id == name)
        self.view = left(self.view, name)
        if job.notice and job.notice.claimant:
            limit = None if job.ends_by is None else job.ends_by - job.started
            shape = (job.id, job.sequence, job.team, job.person, job.job_class, job.request)
            self.view = replace(self.view, waiting=(*self.view.waiting, WaitingJob(*shape, self.view.now, limit)))

    def _update_owed(self) -> None:
        """Note since when each waiting job is owed room: all that its team runs and waits for is within its share."""
        for team in self.teams.values():
            waiting = [job for job in self.view.waiting if job.team == team.name]
            running = [job for job in self.view.running if job.team == team.name]
            gpus = sum(job.request.sums[0] for job in waiting) + sum(job.request.sums[0] for job in running)
            if gpus <= team.gpus:
                for job in waiting:
                    self.owed.setdefault(job.id, self.view.now)
            else:
                for job in waiting:
                    self.owed.pop(job.id, None)

    def _check(self) -> None:
        waiting = {job.id for job in self.view.waiting}
        for name, since in list(self.owed.items()):
            if name not in waiting:
                del self.owed[name]
                self.starts += 1
            else:
                assert self.view.now - since < RULES.grace_s + RULES.hold_back_s, name


@pytest.mark.parametrize(
    "number",
    [*range(FIRST), *(pytest.param(number, marks=pytest.mark.nightly) for number in range(FIRST, 150))],
)
def test_job_within_its_share_starts_within_grace_and_hold_back(number: int) -> None:
    clock = Clock(number)
    for _ in range(TICKS):
        clock.tick()
    # One history in hundreds has none.
    assert clock.starts or number >= FIRST, "some jobs were owed room"
