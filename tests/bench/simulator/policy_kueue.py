"""Queue like that of Kueue: quotas per team in one cohort, borrowing, and reclaim."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby

from backfill import Room, gpus_of

from mlplatform.scheduling.queue import Action, Ask, JobClass, RunningJob, Start, View, WaitingJob

_PRIORITY = {JobClass.URGENT: 0, JobClass.NORMAL: 1, JobClass.IDLE: 2}


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
        self._sticky |= {action.claimant for action in actions if isinstance(action, Ask)}
        return actions


class _Cycle:
    """One decision: cycles of heads until no queue has a workload left."""

    def __init__(self, view: View, sticky: set[str]) -> None:
        self._view, self._sticky = view, sticky
        self._room = Room(view.nodes)
        self._reserved = 0.0
        self._used: dict[str, float] = defaultdict(float)
        for job in view.running:
            self._used[job.team] += _gpus(job)
        self._leaving = sum(_gpus(job) for job in view.running if job.notice)
        self._asked: set[str] = set()

    def actions(self) -> list[Action]:
        def order(job: WaitingJob) -> tuple[str, bool, int, int]:
            return job.team, job.id not in self._sticky, _PRIORITY[job.job_class], job.sequence

        queued = groupby(sorted(self._view.waiting, key=order), key=lambda job: job.team)
        queues = {team: list(jobs)[::-1] for team, jobs in queued}
        found: list[Action] = []
        while heads := [queue.pop() for queue in queues.values() if queue]:
            heads.sort(key=lambda job: (self._borrows(job), _PRIORITY[job.job_class], job.sequence))
            for job in heads:
                found += self._admit(job)
        return found

    def _borrows(self, job: WaitingJob) -> bool:
        return self._used[job.team] + gpus_of(job) > self._view.teams[job.team].gpus

    def _admit(self, job: WaitingJob) -> Iterator[Action]:
        asked, within = gpus_of(job), not self._borrows(job)
        fits = asked <= self._room.gpus - self._reserved
        if fits and (placement := self._room.take(job.request)):
            self._used[job.team] += asked
            yield Start(job.id, within, placement)
        elif within:
            missing = asked - (self._room.gpus + self._leaving - self._reserved)
            victims = self._victims(missing)
            if missing > 0 and not victims:
                return
            # What earlier victims leave is its own, or it would ask for more at every decision.
            self._reserved += asked
            self._used[job.team] += asked
            for victim in victims:
                self._leaving += _gpus(victim)
                self._asked.add(victim.id)
                yield Ask(
                    victim.id, self._view.now + self._view.rules.grace_s, job.id, f"{job.team} reclaims its quota"
                )

    def _victims(self, missing: float) -> list[RunningJob]:
        """Return a minimal set of borrowed workloads with as many GPUs as are missing; empty if there is none."""
        over = {team: self._used[team] - self._view.teams[team].gpus for team in self._used}
        candidates = [job for job in self._view.running if not job.notice and job.id not in self._asked]
        chosen: list[RunningJob] = []
        for job in sorted(candidates, key=lambda job: (-_PRIORITY[job.job_class], -job.started, job.sequence)):
            if missing > 0 and over[job.team] > 0:
                chosen.append(job)
                over[job.team] -= _gpus(job)
                missing -= _gpus(job)
        if missing > 0:
            return []
        for job in chosen[::-1]:
            if missing + _gpus(job) <= 0:
                chosen.remove(job)
                missing += _gpus(job)
        return chosen


def _gpus(job: RunningJob) -> float:
    return sum(amounts.get("GPU", 0.0) for amounts in job.placement.values())
