"""Planner of the queue: which jobs start, which are preempted, and why the others wait.

The contract: what runs within its team's share, no other team takes back. What is free anybody may borrow; a borrower
that is preempted gets time to save its state, and keeps its place. Borrowers leave for jobs within their teams' shares,
and for overdue jobs that came before them. Within a team, overdue jobs are first, then the class
decides, then who has used less lately, then the arrival. No job waits indefinitely for others than those within their
shares.

The planner is a pure function of the view. It decides on one action at a time, each for the state that the last one
leads to: executing only the first actions of a plan and planning again therefore leads to the same end, and a plan for
the state that a plan leads to is empty. It comes to an end, because no action is ever undone.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Iterator
from itertools import islice

from mlplatform.scheduling import reasons
from mlplatform.scheduling.backfill import Reservation, reserve
from mlplatform.scheduling.preemption import borrowers, fewest, for_anybody, is_overtime
from mlplatform.scheduling.queue import (
    Action,
    Explain,
    Placement,
    Preempt,
    Reason,
    Reserve,
    Rule,
    RunningJob,
    Start,
    View,
    WaitingJob,
)
from mlplatform.scheduling.resources import rate
from mlplatform.scheduling.room import Room
from mlplatform.scheduling.state import State

Rank = tuple[float, ...]
"""Position in the order, smaller is earlier; the first number is 0 within a share, the last that of the arrival."""


def plan(view: View) -> list[Action]:
    """Return what to do now, in the order in which to do it.

    Args:
        view: everything that is known.

    Returns:
        Starts, preemptions and reservations, and then an explanation for each job that is promised its room, and for
        the first other one of each line of equal jobs; those behind it wait for the same reasons, and `queue()` has
        them all.
    """
    actions, last = _settle(view)
    return [*actions, *last.explanations(last.first_of_lines())]


def queue(view: View) -> list[Explain]:
    """Return an explanation for each job that keeps waiting, in the order in which they are considered."""
    _, last = _settle(view)
    return list(last.explanations(last.in_order()))


def _settle(view: View) -> tuple[list[Action], Round]:
    """Return all actions, and the round after them, in which nothing is left to do."""
    state, actions = State(view), list[Action]()
    while (last := Round(state)).actions:
        actions += last.actions
    return actions, last


class Round:
    """Decisions for a state, in the order of the waiting jobs' ranks.

    The round ends with the first action after somebody had to wait: from the state that this leads to, it is derived
    anew what each job is promised. Jobs within their teams' shares are first, so nobody is promised what these need.

    Only the first job of a line is considered, and once it does not fit, no other job of its team and shape is. The
    time of a plan therefore grows with what starts, and hardly with what waits.

    Attributes:
        actions: what to do, which the state has been changed by.
        promises: room of jobs that wait until others have left, or Ray reports it as free.
        reservation: room that is kept for a job within its share that fits nowhere; None if there is none.
    """

    def __init__(self, state: State) -> None:
        self.actions: list[Action] = []
        self.promises: dict[str, Placement] = {}
        self.reservation: Reservation | None = None
        self._lagging: set[str] = set()
        self._state, self._shares = state, state.shares.copy()
        self._leaving = state.leaving()
        # What is free by our own accounts, of that what Ray also reports, what is left beside the reservation, and what
        # will be free once all have left that do; each less what is promised.
        self._free, self._now, self._later = state.own.copy(), state.own.within(state.ray), state.own.copy()
        self._beside = self._now
        for job in self._leaving:
            self._later.give(job.placement)
        self._obstacles: dict[Hashable, Reason] = {}
        self._blocked: set[Hashable] = set()
        self._ranks: dict[Hashable, Rank] = {}
        self._reasons: dict[Hashable, tuple[Reason, ...]] = {}
        self._run()

    def _run(self) -> None:
        lines = [line for line in self._state.lines.values() if line]
        ranked = [(self._rank(line[0]), number, 0) for number, line in enumerate(lines)]
        heapq.heapify(ranked)
        while ranked:
            rank, number, position = heapq.heappop(ranked)
            line = lines[number]
            job = line[position]
            if (current := self._rank(job)) > rank:
                # Its team or person has got something since, and nothing moves anybody forward.
                heapq.heappush(ranked, (current, number, position))
            elif self._serve(job):
                position += job.id in self.promises  # a job that has been started has left the line
                if position < len(line):
                    heapq.heappush(ranked, (self._rank(line[position]), number, position))
            if self.actions and (self.promises or self._blocked or not isinstance(self.actions[-1], Start)):
                return

    # --- the order ---

    def _rank(self, job: WaitingJob) -> Rank:
        """Return a job's rank: first are jobs within their shares, then overdue ones, then the others.

        Between teams, the one is first that has borrowed less, lately and now, per weight; within the shares, and in
        ties, the one whose first waiting job came first. Names never decide. Within a team, overdue jobs are first,
        then the class decides, then the person's use, then the arrival. A job that yields is last.
        """
        overdue = self._state.is_overdue(job)
        key = job.team, job.request.sums, overdue, bool(job.reserved), job.yields_until
        if key not in self._ranks:
            self._ranks[key] = self._rank_of_team(job, overdue)
        if overdue:
            return *self._ranks[key], 0.0, 0.0, 0.0, 0.0, job.sequence
        person = job.team, job.person
        if person not in self._ranks:
            used = self._state.view.usage.persons.get(job.person, 0.0)
            self._ranks[person] = used, rate(*self._shares.held(*person))
        return *self._ranks[key], 1.0, job.job_class.order, *self._ranks[person], job.sequence

    def _rank_of_team(self, job: WaitingJob, overdue: bool) -> Rank:
        """Return the first part of a rank, which orders the jobs of different teams."""
        shares, team, waiting = self._shares, job.team, self._state.waiting
        first = next(one.sequence for one in self._state.arrivals[team] if one.id in waiting)
        if job.yields_until > self._state.now:
            return 3.0, 0.0, 0.0, first
        if shares.includes(job):
            return 0.0, not job.reserved, 0.0, first
        if overdue:
            return 1.0, 0.0, 0.0, 0.0
        past = shares.per_weight(team, self._state.view.usage.borrowed.get(team, 0.0))
        return 2.0, past, shares.beyond(team), first

    # --- one job ---

    def _serve(self, job: WaitingJob) -> bool:
        """Start a job, or promise it room, and return whether the next one of its line is considered.

        It is not if a cap or a reservation keeps the job waiting, or if nobody leaves for it. Room only shrinks during
        a round, so once a job does not fit, the others of its team and shape do not either.
        """
        within = self._shares.includes(job)
        group = job.team, job.request.shape, within, self._state.is_overdue(job)
        if group in self._blocked:
            return False
        kept = self._kept_from(job, within)
        if obstacle := self._shares.cap(job):
            self._obstacles[job.line] = obstacle
        elif (placement := self._place(job, self._beside if kept else self._now)) is not None:
            self._do(Start(job.id, within, placement))
            self._count(job, placement)
            return True
        elif kept and self._place(job, self._now) is not None:
            self._obstacles[job.line] = reasons.reserved(kept.job)
        elif job.yields_until > self._state.now:
            self._obstacles[job.line] = reasons.yields(job)
        elif self._make_room(job, within):
            return True
        else:
            self._blocked.add(group)
        return False

    def _place(self, job: WaitingJob, room: Room) -> Placement | None:
        """Return where a job fits in a room, which is only where others leave for it if they still do."""
        if job.reserved is not None and self._later.holds(job.reserved):
            return job.reserved if room.holds(job.reserved) else None
        return room.place(job.request)

    def _kept_from(self, job: WaitingJob, within: bool) -> Reservation | None:
        """Return the reservation that a job may not use, if any.

        Borrowers leave room to what is within a share. Among jobs within their shares, each team has its own room, so
        only its own team's overdue job is served before a job, and any job where there is one team only.
        """
        kept = self.reservation
        if kept is None or kept.outlasts(job, self._state):
            return None
        precedes = not within or self._shares.alone or (kept.overdue and kept.job.team == job.team)
        return kept if precedes else None

    def _do(self, action: Action) -> None:
        self._state.apply(action)
        self.actions.append(action)

    def _count(self, job: WaitingJob, placement: Placement) -> None:
        """Count what a job gets, now or later."""
        self._shares.add(job)
        for room in (self._free, self._now, self._later, *([self._beside] if self.reservation else [])):
            room.take(placement)
        self._ranks.clear()

    # --- room that others hold ---

    def _make_room(self, job: WaitingJob, within: bool) -> bool:
        """Promise a job that does not fit what others leave, or preempt them; return whether it gets room."""
        if not self._is_possible(job):
            return False
        if (lags := self._place(job, self._free)) is not None:
            if within:  # or a job beyond its share could be promised it
                self._promise(job, lags)
                self._lagging.add(job.id)
            return within
        if (placement := self._place(job, self._later)) is not None:
            if within and placement != job.reserved:
                self._do(Reserve(job.id, placement, self._deadline(self._leave_for(job, placement))))
            self._promise(job, placement)
            return True
        if self._preempt(job, within):
            return True
        if within and self.reservation is None:
            self._keep_room(job)
        return False

    def _is_possible(self, job: WaitingJob) -> bool:
        return self._state.empty.place(job.request) is not None

    def _promise(self, job: WaitingJob, placement: Placement) -> None:
        self.promises[job.id] = placement
        self._count(job, placement)

    def _orders(self, job: WaitingJob, within: bool) -> Iterator[list[RunningJob]]:
        """Yield the running jobs that may be preempted for a job, in two orders that are tried one after the other.

        For any job those leave that have reached their limit or are idle. For a job within its share, borrowers of
        other teams leave too, and for an overdue job borrowers of all teams that came later: two jobs can thus not
        drive each other out in turns.

        The second order is without the jobs that leave for anybody: if these do not help, they stay, and a team that is
        beyond its share only with them has to return what it borrows, too.
        """
        staying, shares = self._state.staying(), self._shares
        anybody = for_anybody(staying, self._state.now)
        if shares.alone or not (within or self._state.is_overdue(job)):
            yield anybody
            return

        def may_leave(victim: RunningJob) -> bool:
            return victim.team != job.team if within else victim.sequence > job.sequence

        names = {victim.id for victim in anybody}
        yield [*anybody, *borrowers([one for one in staying if one.id not in names], shares, may_leave)]
        yield [*borrowers(staying, shares, lambda victim: victim.id not in names and may_leave(victim))]

    def _preempt(self, job: WaitingJob, within: bool) -> bool:
        """Preempt the next one of the jobs after which a job fits; return whether there are such jobs."""
        orders, now = self._orders(job, within), self._state.now
        victim = next((victim for order in orders for victim in fewest(order, job.request, self._later)), None)
        if victim is None:
            return False
        why = reasons.why_preempted(victim, job, self._shares if within else None, now)
        claimant = "" if is_overtime(victim, now) else job.id
        self._do(Preempt(victim.id, now + self._state.rules.grace_s, claimant, why))
        return True

    def _keep_room(self, job: WaitingJob) -> None:
        """Keep room for the first job within its share that does not fit.

        None is kept for borrowers: people ask for far longer limits than they need, so it would mostly idle. With such
        room after a day, the mean completion of the simulator's generated workloads 101 to 108 is 2.92 h instead of
        2.85 h, and large jobs wait as long; on its sample 1, with room for overdue jobs, it was 6.3 h instead of 4.5 h.
        """
        self.reservation = reserve(job, self._state, self._free)
        if self.reservation:
            self._beside = self._now.within(self.reservation.beside)

    def _leave_for(self, job: WaitingJob, placement: Placement) -> list[RunningJob]:
        """Return the jobs that leave the room that a job is promised: those preempted for it, or else those there."""
        named = [one for one in self._leaving if one.notice and one.notice.claimant == job.id]
        return named or [one for one in self._leaving if one.placement.keys() & placement.keys()]

    def _deadline(self, leaving: Iterable[RunningJob]) -> float:
        return max(job.notice.deadline for job in leaving if job.notice)

    # --- explanations ---

    def first_of_lines(self) -> Iterator[WaitingJob]:
        """Yield the jobs that are promised room, and the first other one of each line."""
        yield from (self._state.waiting[name] for name in self.promises)
        for line in self._state.lines.values():
            yield from islice((job for job in line if job.id not in self.promises), 1)

    def in_order(self) -> list[WaitingJob]:
        """Return all jobs that keep waiting: those that are promised room are first, then the rank decides."""
        return sorted(self._state.waiting.values(), key=lambda job: (job.id not in self.promises, *self._rank(job)))

    def explanations(self, jobs: Iterable[WaitingJob]) -> Iterator[Explain]:
        """Yield why some jobs wait."""
        kept = self.reservation
        for job in jobs:
            if job.id in self.promises:
                yield self._explain_promise(job)
            else:
                obstacle = self._obstacles.get(job.line) or self._shares.cap(job)
                latest = max(self._state.now, kept.time) if kept and kept.job is job and kept.time < math.inf else None
                yield Explain(job.id, (obstacle,) if obstacle else self._reasons_of(job), latest)

    def _explain_promise(self, job: WaitingJob) -> Explain:
        if job.id in self._lagging:
            lack = reasons.lacks_room(job, self._state.view.nodes, self._now)
            why = reasons.waits_for([]) if job.reserved else Reason(Rule.RAY, lack.text)
            return Explain(job.id, (why,), self._state.now)
        leaving = self._leave_for(job, self.promises[job.id])
        latest = self._deadline(leaving) + self._state.rules.hold_back_s
        return Explain(job.id, (reasons.waits_for(leaving),), latest)

    def _reasons_of(self, job: WaitingJob) -> tuple[Reason, ...]:
        """Return why the jobs of a team and shape wait, which do not fit."""
        within = self._shares.includes(job)
        key = job.team, job.request.shape, within
        if key not in self._reasons:
            self._reasons[key] = self._find_reasons(job, within)
        return self._reasons[key]

    def _find_reasons(self, job: WaitingJob, within: bool) -> tuple[Reason, ...]:
        lack = reasons.lacks_room(job, self._state.view.nodes, self._now)
        if not self._is_possible(job):
            return (lack,)
        if self._free.place(job.request) is not None:
            # Ray's accounts are behind, or a program that has connected directly uses it.
            return (Reason(Rule.RAY, lack.text),)
        if self._shares.alone:
            return (lack,)
        return lack, reasons.in_pieces(job, self._shares) if within else reasons.beyond_share(job, self._shares)
