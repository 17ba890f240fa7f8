"""Choice of the running jobs that are asked to leave so that a waiting job fits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy

from mlplatform.scheduling.lines import class_order
from mlplatform.scheduling.queue import Placement, RunningJob, WaitingJob
from mlplatform.scheduling.room import Fit, Room
from mlplatform.scheduling.shares import Shares, ratio


def is_overtime(job: RunningJob, now: float) -> bool:
    """Return whether a job has reached its limit, and runs on because nobody waits for its resources."""
    return job.ends_by is not None and job.ends_by <= now


class Reclaim:
    """Running jobs that may be asked to leave."""

    def __init__(self, running: Iterable[RunningJob], shares: Shares, now: float) -> None:
        """Index the running jobs, those that were asked to leave excepted.

        Args:
            running: all running jobs.
            shares: what the teams hold.
            now: seconds since 1970.
        """
        self._shares = shares
        self._held = [job for job in running if job.notice is None and any(shares.amount(job))]
        able = [job for job in self._held if not job.stays]
        overtime = [job for job in able if is_overtime(job, now)]
        idle = [job for job in able if job.idle and not is_overtime(job, now)]
        self._anybody = sorted(overtime, key=_youngest_first) + sorted(idle, key=_youngest_first)
        self._lenders = self._lenders_of(idle_stay=False)

    def _lenders_of(self, idle_stay: bool) -> dict[str, _Lender]:
        """Return each team with its jobs; jobs that leave for anybody count only if they stay, and are never asked."""
        if self._shares.alone:
            return {}
        leave = {job.id for job in self._anybody}
        teams: dict[str, list[RunningJob]] = defaultdict(list)
        for job in self._held:
            if idle_stay or job.id not in leave:
                teams[job.team].append(job)
        lenders = {}
        for team, jobs in teams.items():
            able = sorted((job for job in jobs if not job.stays and job.id not in leave), key=_youngest_first)
            lenders[team] = _Lender(team, self._shares, jobs, able)
        return lenders

    def for_anybody(self) -> Iterator[RunningJob]:
        """Yield the jobs that leave for any job: those at their limit, and idle ones."""
        yield from self._anybody

    def for_share(self, team: str) -> Iterator[RunningJob]:
        """Yield the jobs that may be asked to leave for a job within its team's share, in this order.

        Jobs that leave for anybody are first. Borrowers of other teams follow, always those of the team that is
        furthest beyond its share, the lowest class and the youngest first. A team's jobs are taken only while it is
        beyond its share, so it falls below only if one job straddles the share.

        Args:
            team: the team.
        """
        yield from self._anybody
        yield from _borrowers({name: lender for name, lender in self._lenders.items() if name != team})

    def from_borrowers(self, team: str) -> Iterator[RunningJob]:
        """Yield only the borrowers of other teams, if the jobs that leave for anybody stay because they do not help.

        A team that is beyond its share only with these has to return what it borrows, too.
        """
        lenders = self._lenders_of(idle_stay=True)
        yield from _borrowers({name: lender for name, lender in lenders.items() if name != team})

    def for_overdue(self, job: WaitingJob) -> Iterator[RunningJob]:
        """Yield the jobs that may be asked to leave for an overdue job beyond its share, in this order.

        They are those that leave for anybody, and borrowers of all teams that came later: two jobs can thus not drive
        each other out in turns.

        Args:
            job: the overdue job.
        """
        yield from self._anybody
        yield from _borrowers({name: lender.after(job.sequence) for name, lender in self._lenders.items()})

    def asked(self, victims: Iterable[RunningJob]) -> None:
        """Take jobs out of the index that are asked to leave."""
        names = {victim.id for victim in victims}
        self._anybody = [job for job in self._anybody if job.id not in names]
        self._held = [job for job in self._held if job.id not in names]
        for victim in victims:
            if victim.team in self._lenders:
                self._lenders[victim.team].leave(victim)


class _Lender:
    """A team's jobs, of which ever more are asked to leave.

    Attributes:
        able: those that may be asked, in the order in which they are.
    """

    def __init__(self, team: str, shares: Shares, jobs: Sequence[RunningJob], able: Sequence[RunningJob]) -> None:
        self.able = able
        self._team = team
        self._shares = shares
        self._jobs = jobs
        self._changed()

    def copy(self) -> _Lender:
        return copy(self)

    def after(self, sequence: int) -> _Lender:
        """Return a copy of which only jobs that came later may be asked."""
        found = self.copy()
        found.able = [job for job in self.able if job.sequence > sequence]
        found._changed()
        return found

    def leave(self, victim: RunningJob) -> None:
        self._jobs = [job for job in self._jobs if job.id != victim.id]
        self.able = [job for job in self.able if job.id != victim.id]
        self._changed()

    def _changed(self) -> None:
        """Compute what the team holds, and which of its jobs are beyond its share."""
        amounts = [self._shares.amount(job) for job in self._jobs]
        held = sum(gpus for gpus, _ in amounts), sum(cpus for _, cpus in amounts)
        self._borrowed = self._shares.borrowed(self._team, self._jobs)
        first = self.able[0] if self.able else None
        # Of two teams that are equally far beyond their shares, the younger job decides.
        self.key = (ratio(held, self._shares.of(self._team)), first.started, first.sequence) if first else (0.0, 0.0, 0)

    def youngest(self) -> RunningJob | None:
        """Return the job that is asked next; None if the team is within its share, or its borrowers stay."""
        return next((job for job in self.able if job.id in self._borrowed), None)


def _borrowers(teams: Mapping[str, _Lender]) -> Iterator[RunningJob]:
    lenders = {name: lender.copy() for name, lender in teams.items() if lender.able}
    while lenders:
        team = max(lenders, key=lambda team: lenders[team].key)
        lender = lenders[team]
        victim = lender.youngest()
        if victim is not None:
            yield victim
            lender.leave(victim)
        if victim is None or not lender.able:
            del lenders[team]


def fewest(
    order: Iterable[RunningJob], leaving: Sequence[RunningJob], job: WaitingJob, room: Room
) -> tuple[list[RunningJob], Placement | None]:
    """Return jobs that make a waiting job fit: those that leave anyhow, and the first of an order, if they help.

    Args:
        order: jobs that may be asked to leave.
        leaving: jobs that leave.
        job: the waiting job.
        room: what is free once those have left that do.

    Returns:
        The jobs, and where the waiting job then fits; no place if it does not fit even after all have left.
    """
    fit = Fit(room.copy(), job.request)
    chosen: list[RunningJob] = []
    for victim in order:
        if fit.holds:
            break
        chosen.append(victim)
        fit.give(victim.placement)
    placement = fit.room.place(job.request)
    if placement is None:
        return [], None
    # Nodes that the job does not need are not looked at again.
    near: list[RunningJob] = []
    far: list[RunningJob] = []
    for one in leaving:
        (far if placement.keys().isdisjoint(one.placement) else near).append(one)
    fit.take(*(one.placement for one in far))
    needed: list[RunningJob] = []
    for victim in [*chosen[::-1], *near[::-1]]:
        fit.take(victim.placement)
        if not fit.holds:
            fit.give(victim.placement)
            needed.append(victim)
    return needed[::-1], fit.room.place(job.request)


def _youngest_first(job: RunningJob) -> tuple[int, float, int]:
    return -class_order(job.job_class), -job.started, -job.sequence
