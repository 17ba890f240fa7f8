"""Planner of the queue: which jobs start, which are preempted, and why the others wait.

The contract: what runs within its team's share, no other team takes back. What is free anybody may borrow; a borrower
that is preempted gets time to save its state, and keeps its place. Borrowers leave for jobs within their teams' shares,
and for overdue jobs that came before them. Within a team, overdue jobs are first, then the class
decides, then who has used less lately, then the arrival. No job waits indefinitely for others than those within their
shares.

The planner is a pure function of the view: executing only the first actions of a plan and planning again leads to the
same end, and a plan for the state that a plan leads to is empty.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterator

from mlplatform_gateway.queue.planner import reasons
from mlplatform_gateway.queue.planner.accounts import Accounts
from mlplatform_gateway.queue.planner.backfill import Reservation, reserve
from mlplatform_gateway.queue.planner.order import AFTER_SHARES, Line, Rank, Ranking
from mlplatform_gateway.queue.planner.preemption import borrowers, fewest, for_anybody, is_overtime
from mlplatform_gateway.queue.planner.queue import (
    Action,
    Claim,
    Explain,
    Placement,
    Preempt,
    Reason,
    Release,
    Reserve,
    RunningJob,
    Start,
    View,
    WaitingJob,
)
from mlplatform_gateway.queue.planner.room import Room
from mlplatform_gateway.queue.planner.state import State

_MOST_PASSES = 50
"""Two or three are enough, and one more for each claim that is released. Should two passes undo each other, which the
tests look for, an error is better than a plan that no other plan agrees with."""


def plan(view: View) -> list[Action]:
    """Return what to do now, in the order in which to do it.

    Args:
        view: everything that is known.

    Returns:
        Starts, preemptions and claims, and then an explanation for the first of each line of equal jobs; those behind
        it wait for the same reasons, and `queue()` has them all.
    """
    actions, last = _settle(view)
    return [*actions, *last.explanations()]


def first_pass(view: View) -> list[Action]:
    """Return the actions of the first pass only, with its explanations: what to do should the passes not settle."""
    step = _Pass(State(view))
    step.run()
    return [*step.actions, *step.explanations()]


def queue(view: View) -> list[Explain]:
    """Return an explanation for each job that keeps waiting, in the order in which they are considered.

    If the plan does not settle, it is that of its first pass, which alone is executed.
    """
    try:
        _, last = _settle(view)
    except RuntimeError:
        last = _Pass(State(view))
        last.run()
    return sorted(last.explanations(all_jobs=True), key=lambda explanation: last.position(explanation.job))


def _settle(view: View) -> tuple[list[Action], _Pass]:
    """Plan until nothing changes, so that the next plan for the same time is empty."""
    state = State(view)
    actions: list[Action] = []
    most = _MOST_PASSES + len(view.claims)
    for _ in range(most):
        step = _Pass(state)
        step.run()
        if not step.actions:
            return actions, step
        actions += step.actions
    raise RuntimeError(
        f"The plan for {len(view.waiting)} waiting and {len(view.running)} running jobs with {len(view.claims)} claims "
        f"on {len(view.nodes)} nodes still changes after {most} passes; the last one ends with {actions[-1]}."
    )


class _Pass:
    """One pass over the lines, in the order of their first jobs' ranks, which changes the state."""

    def __init__(self, state: State) -> None:
        self.actions: list[Action] = []
        self._state = state
        self._accounts = Accounts(state)
        self._lines = [Line(jobs) for jobs in state.lines.values()]
        self._claimed = {claim.job for claim in self._accounts.claims}
        self._ranking = Ranking(state, self._accounts.shares, self._is_served)
        self._reservation: Reservation | None = None
        self._blocked: set[tuple[Hashable, bool]] = set()
        self._failed: set[Hashable] = set()
        self._empty = Room(state.view.nodes, {node.name: node.total for node in state.view.nodes if node.alive})
        self._obstacles_of: dict[Hashable, tuple[Reason, ...]] = {}

    # --- the pass ---

    def run(self) -> None:
        """Start what can start, and make room for what is owed room."""
        for name in [name for name in self._state.claims if name not in self._claimed]:
            self._do(Release(name))  # before what is decided without it
        for claim in list(self._accounts.claims):
            job = self._state.waiting[claim.job]
            if placement := self._accounts.of_claim(claim).place(job.request):
                self._start(job, placement, self._accounts.is_within(job))
        if self.actions:
            return  # they are running jobs now, which may be preempted
        heads = [(number, line, line.head(self._is_served)) for number, line in enumerate(self._lines)]
        ranked = [(self._ranking.rank(head), number, line) for number, line, head in heads if head]
        heapq.heapify(ranked)
        while ranked:
            rank, number, line = heapq.heappop(ranked)
            if (following := self._turn(line, rank)) is not None:
                heapq.heappush(ranked, (following, number, line))

    def _turn(self, line: Line, rank: Rank) -> Rank | None:
        """Consider the first job of a line; return the rank at which it has its next turn, None for no more.

        Each start moves its team and person back, and nothing moves anybody forward, so a line whose own rank is behind
        `rank` by now has to wait.
        """
        if (head := line.head(self._is_served)) is None:
            return None
        current = self._ranking.rank(head)
        within = current[0] == 0
        if (line.group, within) in self._blocked:
            # By then the team may have used up its share, and the line has to be considered as a borrower.
            return AFTER_SHARES if within and rank < AFTER_SHARES else None
        if current <= rank:
            self._consider(line, head, within)
        return None if line.obstacle else current

    def _is_served(self, job: WaitingJob) -> bool:
        """Return whether a job has been started, or has a claim."""
        return job.id in self._claimed or job.id not in self._state.waiting

    def _do(self, action: Action) -> None:
        self._state.apply(action)
        self.actions.append(action)

    def _start(self, job: WaitingJob, placement: Placement, within: bool) -> None:
        self._accounts.start(job, placement)
        kept = self._reservation
        if kept and not kept.outlasts(job, self._state):
            kept.beside.take(placement)
        self._do(Start(job.id, within, placement))

    # --- one job ---

    def _consider(self, line: Line, job: WaitingJob, within: bool) -> None:
        """Start the first job of a line, or make room for it.

        A line is left out that a cap or a reservation keeps waiting, or for which nobody leaves yet. Room only shrinks
        during a pass, so once a job does not fit, the others of its team and shape do not either.
        """
        kept = self._kept_from(job, within)
        if obstacle := self._accounts.shares.cap(job):
            line.obstacle = obstacle
        elif (placement := self._place(job, within, kept)) is not None:
            self._start(job, placement, within)
        elif kept and self._place(job, within) is not None:
            line.obstacle = reasons.reserved(kept.job)
        elif job.yields_until > self._state.now:
            line.obstacle = reasons.yields(job)
        elif not self._make_room(job, within):
            self._blocked.add((line.group, within))
        self._ranking.update()

    def _place(self, job: WaitingJob, within: bool, kept: Reservation | None = None) -> Placement | None:
        """Return where a job fits now, beside the room that is kept for another; None if it does not."""
        key = ("place", job.request.shape, within)
        if key in self._failed or ((*key, "kept") in self._failed and kept):
            return None
        room = self._accounts.free(within)
        placement = (room.within(kept.beside) if kept else room).place(job.request)
        if placement is None:
            self._failed.add((*key, "kept") if kept else key)
        return placement

    def _kept_from(self, job: WaitingJob, within: bool) -> Reservation | None:
        """Return the reservation that a job may not use, if any.

        Borrowers leave room to what is within a share. Among jobs within their shares, each team has its own room, so
        only its own team's overdue job is served before a job, and any job where there is one team only.
        """
        kept = self._reservation
        if kept is None or kept.outlasts(job, self._state):
            return None
        precedes = not within or self._accounts.shares.alone or (kept.overdue and kept.job.team == job.team)
        return kept if precedes else None

    # --- room that others hold ---

    def _make_room(self, job: WaitingJob, within: bool) -> bool:
        """Preempt others for a job that does not fit, or keep room for it; return whether others leave."""
        if not self._is_possible(job):
            return False
        lags = self._accounts.own(within).place(job.request)
        if lags is None and self._claim(job, within):
            return True
        if within:
            self._reserve(job)  # before the promise, which takes the same room
            if lags is not None:  # or a job beyond its share could claim it
                self._accounts.promise(job, lags)
        return False

    def _is_possible(self, job: WaitingJob) -> bool:
        return self._empty.place(job.request) is not None

    def _claim(self, job: WaitingJob, within: bool) -> bool:
        """Claim room that others hold; return whether enough of them may be preempted.

        For any job those leave that have reached their limit or are idle. For a job within its share, borrowers of
        other teams leave too, and for an overdue job borrowers of all teams that came later: two jobs can thus not
        drive each other out in turns.
        """
        state = self._state
        overdue = state.is_overdue(job)
        key = ("claim", job.request.shape, job.team if within else overdue)
        if key in self._failed:
            return False
        later, leaving = self._accounts.later(within), state.leaving()
        for order in self._orders(job, within, overdue):
            victims, placement = fewest(order, leaving, job.request, later)
            if placement is not None and victims:
                self._preempt(job, victims, placement, within)
                return True
        self._failed.add(key)
        return False

    def _orders(self, job: WaitingJob, within: bool, overdue: bool) -> Iterator[list[RunningJob]]:
        """Yield the running jobs that may be preempted for a job, in two orders that are tried one after the other.

        The second is without the jobs that leave for anybody: if these do not help, they stay, and a team that is
        beyond its share only with them has to return what it borrows, too.
        """
        staying, shares = self._state.staying(), self._accounts.shares
        anybody = for_anybody(staying, self._state.now)
        if shares.alone or not (within or overdue):
            yield anybody
            return

        def may_leave(victim: RunningJob) -> bool:
            return victim.team != job.team if within else victim.sequence > job.sequence

        names = {victim.id for victim in anybody}
        yield [*anybody, *borrowers(staying, shares, names, may_leave)]
        yield [*borrowers(staying, shares, (), lambda victim: victim.id not in names and may_leave(victim))]

    def _preempt(self, job: WaitingJob, victims: list[RunningJob], placement: Placement, within: bool) -> None:
        """Preempt jobs, and then claim what they leave for a waiting job: a claim on jobs that stay is void."""
        now, deadline = self._state.now, self._state.now + self._state.rules.grace_s
        latest = max(victim.notice.deadline if victim.notice else deadline for victim in victims)
        claim = Claim(job.id, frozenset(victim.id for victim in victims), latest, placement)
        for victim in [victim for victim in victims if victim.notice is None]:
            why = reasons.why_preempted(victim, job, self._accounts.shares if within else None, now)
            self._do(Preempt(victim.id, deadline, "" if is_overtime(victim, now) else job.id, why))
        self._do(Reserve(claim))
        self._accounts.claim(claim)
        self._claimed.add(job.id)

    def _reserve(self, job: WaitingJob) -> None:
        """Keep room for the first job within its share that does not fit.

        None is kept for borrowers: people ask for far longer limits than they need, so it would mostly idle. With such
        room after a day, the mean completion of the simulator's generated workloads 101 to 108 is 2.92 h instead of
        2.85 h, and large jobs wait as long; on its sample 1, with room for overdue jobs, it was 6.3 h instead of 4.5 h.
        """
        key = ("reserve", self._state.is_overdue(job), job.request.shape)
        if self._reservation or key in self._failed:
            return
        self._reservation = reserve(job, self._state, self._accounts)
        if self._reservation is None:
            self._failed.add(key)

    # --- explanations ---

    def position(self, name: str) -> Rank:
        """Return what orders the jobs that keep waiting: those with a claim are first, then the rank decides."""
        job = self._state.waiting[name]
        return (-1.0, job.sequence) if name in self._claimed else self._ranking.rank(job)

    def explanations(self, all_jobs: bool = False) -> Iterator[Explain]:
        """Yield an explanation for the first job of each line and those with a claim, or for all jobs."""
        state, kept = self._state, self._reservation
        for claim in self._accounts.claims:
            leaving = [state.running[victim] for victim in claim.victims if victim in state.running]
            yield Explain(claim.job, (reasons.waits_for(leaving),), claim.deadline + state.rules.hold_back_s)
        for line in self._lines:
            within = (line.group, False) not in self._blocked
            head = line.head(self._is_served)
            for job in [job for job in line.jobs if not self._is_served(job)] if all_jobs else filter(None, [head]):
                obstacle = line.obstacle or self._accounts.shares.cap(job)
                why = (obstacle,) if obstacle else self._obstacles(line, within)
                latest = max(state.now, kept.time) if kept and kept.job is job and kept.time < math.inf else None
                yield Explain(job.id, why, latest)

    def _obstacles(self, line: Line, within: bool) -> tuple[Reason, ...]:
        """Return why the jobs of a line wait, which do not fit."""
        key = (line.group, within)
        if key not in self._obstacles_of:
            self._obstacles_of[key] = self._find_obstacles(line.jobs[0], within)
        return self._obstacles_of[key]

    def _find_obstacles(self, job: WaitingJob, within: bool) -> tuple[Reason, ...]:
        shares, own = self._accounts.shares, self._accounts.own(within)
        lack = reasons.lacks_room(job, self._state.view.nodes, self._accounts.free(within))
        if not self._is_possible(job):
            return (lack,)
        if own.place(job.request) is not None:
            return (reasons.lags(lack),)
        if shares.alone:
            return (lack,)
        return lack, reasons.in_pieces(job, shares) if within else reasons.beyond_share(job, shares)
