"""State of the queue while a plan is made: a view to which the plan's own actions are applied."""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from mlplatform.scheduling.lines import groups_of
from mlplatform.scheduling.queue import (
    Action,
    Ask,
    Hold,
    Notice,
    Placement,
    Release,
    RunningJob,
    Start,
    View,
    WaitingJob,
)
from mlplatform.scheduling.room import Room


class State:
    """A view that changes with each action.

    Attributes:
        arrivals: each team's waiting jobs in the order of arrival, also those that have been started since.
    """

    def __init__(self, view: View) -> None:
        """Index a view, which is not changed.

        Args:
            view: what is known.
        """
        self.view = view
        self.now = view.now
        self.rules = view.rules
        arrived = sorted(view.waiting, key=attrgetter("sequence"))
        self.groups = groups_of(arrived)
        self.arrivals: dict[str, list[WaitingJob]] = defaultdict(list)
        for job in arrived:
            self.arrivals[job.team].append(job)
        self.waiting = {job.id: job for job in view.waiting}
        self.running = {job.id: job for job in view.running}
        self.claims = {claim.job: claim for claim in view.claims}
        self.ray = Room(view.nodes, {node.name: node.available(True) for node in view.nodes})
        self._leaving = sorted(filter(self.is_leaving, view.running), key=_deadline)

    def apply(self, action: Action) -> None:
        """Change the state as executing an action will change it."""
        if isinstance(action, Start):
            job = self.waiting.pop(action.job)
            self.running[job.id] = started(job, action.placement, self.now)
            self.claims.pop(job.id, None)
            self.ray.take(action.placement)
        elif isinstance(action, Ask):
            victim = self.running[action.job] = _asked(self.running[action.job], action)
            if self.is_leaving(victim):
                insort(self._leaving, victim, key=_deadline)
        elif isinstance(action, Hold):
            self.claims[action.claim.job] = action.claim
        elif isinstance(action, Release):
            self.claims.pop(action.job, None)

    def is_leaving(self, job: RunningJob) -> bool:
        """Return whether a job will leave soon: it was asked to, and is not stuck."""
        return job.notice is not None and self.now <= job.notice.deadline + self.rules.hold_back_s

    def leaving(self) -> Sequence[RunningJob]:
        """Return the jobs that will leave soon, in the order of their deadlines."""
        return self._leaving

    def end_of(self, job: WaitingJob) -> float:
        """Return the latest time at which a job that starts now has left, if a job waits for it."""
        return math.inf if job.limit_s is None else self.now + job.limit_s + self.rules.grace_s


def started(job: WaitingJob, placement: Placement, now: float) -> RunningJob:
    """Return a waiting job as it runs after a start."""
    return RunningJob(
        job.id,
        job.sequence,
        job.team,
        job.person,
        job.job_class,
        job.request,
        placement,
        now,
        None if job.limit_s is None else now + job.limit_s,
        group=job.group,
    )


def _deadline(job: RunningJob) -> tuple[float, int]:
    return job.notice.deadline if job.notice else math.inf, job.sequence


def _asked(job: RunningJob, action: Ask) -> RunningJob:
    return replace(job, notice=Notice(action.deadline, action.claimant))
