"""Choice of the running jobs that are asked to leave so that a waiting job fits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from mlplatform.scheduling.lines import class_order
from mlplatform.scheduling.queue import Rules, RunningJob, WaitingJob
from mlplatform.scheduling.room import Room
from mlplatform.scheduling.shares import Shares, ratio


def protected_until(job: RunningJob, rules: Rules) -> float:
    """Return the time until which a job is not asked to leave; the least time doubles with each preemption."""
    doubled = rules.protected_s * 2.0 ** min(job.preemptions, 64)
    return job.started + min(doubled, rules.protected_most_s)


def is_overtime(job: RunningJob, now: float) -> bool:
    """Return whether a job has reached its limit, and runs on because nobody waits for its resources."""
    return job.ends_by is not None and job.ends_by <= now


class Reclaim:
    """Running jobs that may be asked to leave."""

    def __init__(self, running: Iterable[RunningJob], shares: Shares, now: float, rules: Rules) -> None:
        """Index the running jobs.

        Args:
            running: all running jobs.
            shares: what the teams hold; copied where a choice changes it.
            now: seconds since 1970.
            rules: durations that apply.
        """
        self._shares = shares
        self._now = now
        self._rules = rules
        self._staying: dict[str, list[RunningJob]] = defaultdict(list)
        for job in running:
            if job.notice is None:
                self._staying[job.team].append(job)

    def order(self, job: WaitingJob, within: bool) -> list[RunningJob]:
        """Return the jobs that may be asked to leave for a waiting job, in the order in which they would be.

        Jobs that anybody may take from are first: those at their limit, and idle ones. Borrowers of other teams follow,
        always those of the team that is furthest beyond its share, the lowest class and the youngest first. A team's
        jobs are taken only while it is beyond its share, so it falls below only if one job straddles the share.

        Args:
            job: the waiting job.
            within: whether it is within its share; otherwise only jobs that anybody may take from are listed.
        """
        held = [one for jobs in self._staying.values() for one in jobs if any(self._shares.amount(one))]
        overtime = [one for one in held if is_overtime(one, self._now)]
        old = [one for one in held if protected_until(one, self._rules) <= self._now]
        idle = [one for one in old if one.idle and one not in overtime]
        anybody = sorted(overtime, key=_youngest_first) + sorted(idle, key=_youngest_first)
        if not within or self._shares.alone:
            return anybody
        return anybody + self._borrowers(job.team, old, {one.id for one in anybody})

    def _borrowers(self, claiming: str, old: Sequence[RunningJob], taken: set[str]) -> list[RunningJob]:
        left = {team: [job for job in jobs if job.id not in taken] for team, jobs in self._staying.items()}
        held = {team: _sum(jobs, self._shares) for team, jobs in left.items()}
        able = defaultdict(list)
        for candidate in sorted(old, key=_youngest_first):
            if candidate.id not in taken and candidate.team != claiming:
                able[candidate.team].append(candidate)
        order: list[RunningJob] = []
        while able:
            team = max(able, key=lambda team: self._beyond(held[team], team, able[team][0]))
            borrowed = self._shares.borrowed(team, left[team])
            victim = next((candidate for candidate in able[team] if candidate.id in borrowed), None)
            if victim is None:
                del able[team]
                continue
            order.append(victim)
            able[team].remove(victim)
            left[team].remove(victim)
            held[team] = _sum(left[team], self._shares)
            if not able[team]:
                del able[team]
        return order

    def _beyond(self, held: tuple[float, float], team: str, first: RunningJob) -> tuple[float, float, int]:
        """Return the key of a team among borrowers; of two that are equally far beyond, the younger job decides."""
        return ratio(held, self._shares.of(team)), first.started, first.sequence


def fewest(order: Sequence[RunningJob], job: WaitingJob, room: Room) -> list[RunningJob] | None:
    """Return the first jobs of an order that make a waiting job fit, without those that do not help.

    Args:
        order: jobs that may leave.
        job: the waiting job.
        room: what is free without them.

    Returns:
        The jobs; None if it does not fit even after all have left.
    """

    def fits(leaving: Iterable[RunningJob]) -> bool:
        with_them = room.copy()
        for victim in leaving:
            with_them.give(victim.placement)
        return with_them.place(job.request) is not None

    if not fits(order):
        return None
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(order[:middle]) else (middle + 1, high)
    chosen = list(order[:high])
    for victim in reversed(order[:high]):
        rest = [other for other in chosen if other is not victim]
        if fits(rest):
            chosen = rest
    return chosen


def _youngest_first(job: RunningJob) -> tuple[int, float, int]:
    return -class_order(job.job_class), -job.started, -job.sequence


def _sum(jobs: Iterable[RunningJob], shares: Shares) -> tuple[float, float]:
    amounts = [shares.amount(job) for job in jobs]
    return sum(gpus for gpus, _ in amounts), sum(cpus for _, cpus in amounts)
