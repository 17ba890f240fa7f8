"""Planner of the queue: which jobs start, which are asked to leave, and why the others wait.

The contract: what runs within its team's share, no other team takes back. What is free anybody may borrow; a borrower
that is asked to leave gets time to save its state, and keeps its place. Borrowers leave for jobs within their teams'
shares, and for overdue jobs that came before them. Within a team, overdue jobs are first, then the class decides, then
who has used less lately, then the arrival. No job waits indefinitely for others than those within their shares.

The planner is a pure function of the view: executing only the first actions of a plan and planning again leads to the
same end, but for the jobs at their limit that are asked to leave, and a plan for the state that a plan leads to is
empty.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Iterator

from mlplatform.scheduling import reasons
from mlplatform.scheduling.books import Books
from mlplatform.scheduling.fitting import Fitting, outranked
from mlplatform.scheduling.queue import (
    Action,
    Ask,
    Claim,
    Hold,
    Placement,
    Reason,
    Release,
    Rule,
    RunningJob,
    Say,
    Start,
    View,
    WaitingJob,
)
from mlplatform.scheduling.ranking import Order, Rank, Ranking
from mlplatform.scheduling.reclaim import Reclaim, fewest, is_overtime
from mlplatform.scheduling.reserve import Reservation, reserve
from mlplatform.scheduling.room import asked
from mlplatform.scheduling.state import State

_AFTER_SHARES: Rank = (0.5,)
"""Rank between jobs within their shares and all others."""

_LAST: Rank = (math.inf,)

_MOST_PASSES = 50
"""Two or three are enough, and one more for each claim that is released. Should two passes undo each other, which the
tests look for, an error is better than a plan that no other plan agrees with."""


def plan(view: View) -> list[Action]:
    """Return what to do now, in the order in which to do it.

    Args:
        view: everything that is known.

    Returns:
        Starts, requests to leave and claims, and then an explanation for the first of each line of equal jobs; those
        behind it wait for the same reasons, and `queue()` has them all.
    """
    actions, last = _settle(view)
    return [*actions, *last.explanations()]


def first_pass(view: View) -> list[Action]:
    """Return the actions of the first pass only, with its explanations: what to do should the passes not settle."""
    step = _Pass(State(view))
    step.run()
    return [*step.actions, *step.explanations()]


def queue(view: View) -> list[Say]:
    """Return an explanation for each job that keeps waiting, in the order in which they are considered.

    If the plan does not settle, it is that of its first pass, which alone is executed.
    """
    try:
        _, last = _settle(view)
    except RuntimeError:
        last = _Pass(State(view))
        last.run()
    return sorted(last.explanations(all_jobs=True), key=lambda say: last.position(say.job))


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
    """One pass over the groups, in the order of their first jobs' ranks, which changes the state."""

    def __init__(self, state: State) -> None:
        self.actions: list[Action] = []
        self._state = state
        self._books = Books(state)
        self._reclaim = Reclaim(state.running.values(), self._books.shares, state.now)
        self._fitting = Fitting(state, self._books)
        self._reservation: Reservation | None = None
        self._is_over = False
        self._failed: set[Hashable] = set()
        self._promised: dict[str, tuple[Reason, ...]] = {}
        self._blocked: dict[int, bool] = {}
        for group in state.groups:
            for line in group.lines:
                line.position, line.obstacle = 0, None
                line.advance(self._is_served)
        self._ranking = Ranking(state, self._books, self._is_served)

    # --- the pass ---

    def run(self) -> None:
        """Start what can start, and make room for what is owed room."""
        for job in [name for name in self._state.claims if name not in self._books.claims]:
            self._do(Release(job))  # before what is decided without it
        self._start_claimants()
        if self.actions:
            return  # they are running jobs now, which may be asked to leave
        orders = [Order(group, self._ranking, self._is_served) for group in self._state.groups]
        ranked = [(order.rank(), number, order) for number, order in enumerate(orders) if order.head()]
        heapq.heapify(ranked)
        while ranked and not self._is_over:
            _, number, order = heapq.heappop(ranked)
            rank = self._turn(number, order, ranked[0][0] if ranked else _LAST)
            if rank is not None:
                heapq.heappush(ranked, (rank, number, order))

    def _turn(self, number: int, order: Order, following: Rank) -> Rank | None:
        """Consider the first job of a group; return the rank at which the group has its next turn, None for no more.

        Args:
            number: number of the group.
            order: its lines.
            following: the next group's rank. Each start moves its team and person back, and nothing moves anybody
                forward, so a group whose own rank is behind it by now has to wait.
        """
        head = order.head()
        if head is None:
            return None
        rank = order.rank()
        within = rank[0] == 0
        if self._blocked.get(number) is within:
            return None
        if rank > following or self._consider(order, head, within):
            return rank
        self._blocked[number] = within
        # By then the team may have used up its share, and the group has to be considered as a borrower.
        return _AFTER_SHARES if within else None

    def _is_served(self, job: WaitingJob) -> bool:
        """Return whether a job has been started, or waits for others to leave."""
        return job.id not in self._state.waiting or job.id in self._books.claims or job.id in self._promised

    def _do(self, action: Action) -> None:
        self._state.apply(action)
        self.actions.append(action)

    def _start_claimants(self) -> None:
        for name in list(self._books.claims):
            job = self._state.waiting[name]
            placement = self._books.room_of_claim(name).place(job.request)
            if placement is not None:
                self._start(job, placement, within=self._books.is_within(job))

    def _start(self, job: WaitingJob, placement: Placement, within: bool) -> None:
        self._books.start(job, placement)
        kept = self._reservation
        if kept and not kept.outlasts(self._state.end_of(job)):
            kept.beside.take(placement)
        self._do(Start(job.id, within, placement))

    # --- one job ---

    def _consider(self, order: Order, job: WaitingJob, within: bool) -> bool:
        """Start the first job of a group, or make room for it; return whether others of the group may start.

        A line is left out that a cap or a reservation keeps waiting, or for which nobody leaves yet. Room only shrinks
        during a pass, so once a job does not fit, the others of its group do not either.
        """
        if obstacle := self._books.capped.obstacle(job, asked(job.request)):
            order.drop(obstacle)
            return True
        kept = self._kept_from(job, within)
        if (placement := self._fitting.place(job, kept)) is not None:
            self._start(job, placement, within)
            return True
        if kept and self._fitting.place(job) is not None:
            order.drop(reasons.reserved(kept))
            return True
        if job.yields_until > self._state.now:
            order.drop(reasons.yields(job))
            return True
        return self._make_room(job, within)

    def _make_room(self, job: WaitingJob, within: bool) -> bool:
        """Let others leave for a job that does not fit, or keep room for it; return whether others leave."""
        if not self._fitting.is_possible(job):
            return False
        if not self._fitting.fits_but_for_ray(job):
            owed = within or self._ranking.is_overdue(job)
            if owed and not self._books.shares.alone:
                if self._claim(job, within):
                    return True
            elif self._borrow(job, within):
                return True
        if within:
            self._reserve(job)  # before the promise, which takes the same room
            if placement := self._books.own.place(job.request):  # but Ray lags to free it
                self._books.promise(job, placement)  # or a job beyond its share could claim it
        return False

    def _kept_from(self, job: WaitingJob, within: bool) -> Reservation | None:
        """Return the reservation that a job may not use, if any.

        Borrowers leave room to what is within a share. Among jobs within their shares, each team has its own room, so
        only its own team's overdue job is served before a job, and any job where there is one team only.
        """
        kept = self._reservation
        if kept is None or kept.outlasts(self._state.end_of(job)):
            return None
        precedes = not within or self._books.shares.alone or (kept.overdue and kept.job.team == job.team)
        return kept if precedes else None

    # --- room that others hold ---

    def _claim(self, job: WaitingJob, within: bool) -> bool:
        """Claim room for a job within its share or an overdue one; return whether enough jobs may be asked to leave."""
        if within:
            victims, placement = self._victims(job, job.team, self._reclaim.for_share(job.team))
            if placement is None:
                victims, placement = self._victims(job, f"{job.team} alone", self._reclaim.from_borrowers(job.team))
            if placement is None:
                for name in outranked(job, list(self._reclaim.for_share(job.team)), self._state, self._books):
                    self._do(Release(name))
                    self._is_over = True  # or others would take what is free
        else:
            victims, placement = self._victims(job, "overdue", self._reclaim.for_overdue(job))
        if placement is None:
            return False
        self._hold(job, victims, placement, within)
        return True

    def _hold(self, job: WaitingJob, victims: list[RunningJob], placement: Placement, within: bool) -> None:
        """Let jobs leave, and then claim what they leave for a waiting job: a claim on jobs that stay is void."""
        deadline = self._state.now + self._state.rules.grace_s
        latest = max(victim.notice.deadline if victim.notice else deadline for victim in victims)
        claim = Claim(job.id, frozenset(victim.id for victim in victims), latest, placement)
        self._books.claim(claim, job)
        self._ask(victims, job, within)
        self._do(Hold(claim))

    def _victims(
        self, job: WaitingJob, name: str, order: Iterable[RunningJob]
    ) -> tuple[list[RunningJob], Placement | None]:
        """Return the jobs that leave, or have to, so that a job fits, and where it then does; no place if none do.

        Args:
            name: equal for jobs of which a later one finds no more than an earlier one.
            order: jobs that may be asked to leave.
        """
        key = ("victims", name, job.request.shape)
        if key in self._failed:
            return [], None
        victims, placement = fewest(order, self._state.leaving(), job, self._books.later)
        if not victims:
            self._failed.add(key)
        return victims, placement if victims else None

    def _ask(self, victims: list[RunningJob], job: WaitingJob, within: bool) -> None:
        asked_now = [victim for victim in victims if victim.notice is None]
        for victim in asked_now:
            claimant = "" if is_overtime(victim, self._state.now) else job.id
            why = reasons.why_reclaimed(victim, job, self._books.shares if within else None, self._state.now)
            self._do(Ask(victim.id, self._state.now + self._state.rules.grace_s, claimant, why))
        self._reclaim.asked(asked_now)
        self._books.asked(asked_now)

    def _borrow(self, job: WaitingJob, within: bool) -> bool:
        """Ask jobs to leave that anybody may take from; return whether that is enough."""
        if within:
            self._reserve(job)
        victims, placement = self._victims(job, "borrow", self._reclaim.for_anybody())
        if placement is None:
            return False
        if any(victim.idle for victim in victims):
            # Without a claim, an idle job within its share would be back before the one that it leaves for.
            self._hold(job, victims, placement, within)
            return True
        self._ask(victims, job, within)
        self._promised[job.id] = (*self._fitting.obstacles_of_borrower(job), reasons.waits_for(victims, Rule.LIMIT))
        self._books.promise(job, placement)
        return True

    def _reserve(self, job: WaitingJob) -> None:
        """Keep room for the first job within its share that does not fit.

        None is kept for borrowers: people ask for far longer limits than they need, so it would mostly idle. On the
        simulator's sample 1, the mean completion is 6.3 h with such room for overdue jobs and 4.5 h without.
        """
        overdue = self._ranking.is_overdue(job)
        key = ("reserve", overdue, job.request.shape)
        if self._reservation or key in self._failed:
            return
        self._reservation = reserve(job, overdue, self._books.base.copy(), self._books.leaving(job))
        if self._reservation is None:
            self._failed.add(key)

    # --- explanations ---

    def position(self, name: str) -> Rank:
        """Return what orders the jobs that keep waiting: those with a claim are first, then the rank decides."""
        job = self._state.waiting[name]
        return (-1.0, job.sequence) if name in self._books.claims else self._ranking.rank(job)

    def explanations(self, all_jobs: bool = False) -> Iterator[Say]:
        """Yield an explanation for the first job of each line and those with a claim, or for all jobs."""
        state, kept = self._state, self._reservation
        latest = {kept.job.id: max(state.now, kept.time)} if kept and kept.time < math.inf else {}
        for name, claim in self._books.claims.items():
            latest[name] = claim.deadline + state.rules.hold_back_s
        for job, why in self._explained(all_jobs):
            yield Say(job.id, why, latest.get(job.id))

    def _explained(self, all_jobs: bool) -> Iterator[tuple[WaitingJob, tuple[Reason, ...]]]:
        waiting, running = self._state.waiting, self._state.running
        for name, claim in self._books.claims.items():
            yield waiting[name], (reasons.waits_for(reasons.ordered(claim, running), Rule.CLAIM),)
        for name, found in self._promised.items():
            yield waiting[name], found
        for number, group in enumerate(self._state.groups):
            general: tuple[Reason, ...] = ()
            for line in group.lines:
                for job in line.jobs[line.position : None if all_jobs else line.position + 1]:
                    if self._is_served(job):
                        continue
                    obstacle = line.obstacle or self._books.capped.obstacle(job, asked(job.request))
                    if not obstacle and not general:
                        general = self._fitting.obstacles(job, self._blocked.get(number, False))
                    yield job, (obstacle,) if obstacle else general
