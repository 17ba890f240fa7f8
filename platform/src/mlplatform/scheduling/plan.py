"""Planner of the queue: which jobs start, which are asked to leave, and why the others wait.

The contract: what runs within its team's share, no other team takes back. What is free anybody may borrow; a borrower
that is asked to leave gets time to save its state, and keeps its place. Within a team, overdue jobs are first, then the
class decides, then who has used less lately, then the arrival. No job waits indefinitely.

The planner is a pure function of the view: executing only the first actions of a plan and planning again leads to the
same end, and a plan for the state that a plan leads to is empty.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterator, Mapping
from types import MappingProxyType

from mlplatform.scheduling import reasons
from mlplatform.scheduling.books import Books
from mlplatform.scheduling.lines import Line
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
from mlplatform.scheduling.ranking import Ranking
from mlplatform.scheduling.reclaim import Reclaim, fewest, is_overtime
from mlplatform.scheduling.reserve import Reservation, reserve
from mlplatform.scheduling.room import Room, asked
from mlplatform.scheduling.state import State

_NO_STARTS: Mapping[str, float | None] = MappingProxyType({})

_MOST_PASSES = 20
"""Two or three are enough; the bound keeps a defect, by which two passes undo each other, from blocking the gateway."""


def plan(view: View, latest_starts: Mapping[str, float | None] = _NO_STARTS) -> list[Action]:
    """Return what to do now, in the order in which to do it.

    Args:
        view: everything that is known.
        latest_starts: latest starts by job id, as `forecast()` returns them, for the explanations.

    Returns:
        Starts, requests to leave and claims, and then an explanation for the first of each line of equal jobs; those
        behind it wait for the same reasons, and `queue()` has them all.
    """
    actions, last = _settle(view)
    return [*actions, *last.explanations(latest_starts)]


def queue(view: View, latest_starts: Mapping[str, float | None] = _NO_STARTS) -> list[Say]:
    """Return an explanation for each job that keeps waiting, in the order in which they are considered.

    Args:
        view: everything that is known.
        latest_starts: latest starts by job id.
    """
    _, last = _settle(view)
    return sorted(last.explanations(latest_starts, all_jobs=True), key=lambda say: say.place)


def _settle(view: View) -> tuple[list[Action], _Pass]:
    """Plan until nothing changes, so that the next plan for the same time is empty."""
    state = State(view)
    actions: list[Action] = []
    for _ in range(_MOST_PASSES):
        step = _Pass(state)
        step.run()
        actions += step.actions
        if not step.actions:
            break
    return actions, step


class _Pass:
    """One pass over the lines, in the order of their first jobs' ranks, which changes the state."""

    def __init__(self, state: State) -> None:
        self.actions: list[Action] = []
        self._state = state
        self._books = Books(state)
        self._reclaim = Reclaim(state.running.values(), self._books.shares, state.now, state.rules)
        self._empty = Room(state.view.nodes, {node.name: node.total for node in state.view.nodes if node.alive})
        self._reservations: dict[bool, Reservation] = {}
        self._failed: set[Hashable] = set()
        self._known: dict[Hashable, tuple[Reason, ...]] = {}
        self._possible: dict[Hashable, bool] = {}
        self._lacking: dict[Hashable, Reason] = {}
        self._beyond: dict[Hashable, Reason] = {}
        self._promised: dict[str, tuple[Reason, ...]] = {}
        self._blocked: list[tuple[Line, tuple[Reason, ...]]] = []
        for line in state.lines:
            line.position = 0
            self._head(line)
        self._ranking = Ranking(state, self._books)

    # --- the pass ---

    def run(self) -> None:
        """Start what can start, and make room for what is owed room."""
        self._start_claimants()
        ranked = [
            (self._ranking.rank(head), number, line)
            for number, line in enumerate(self._state.lines)
            if (head := self._head(line))
        ]
        heapq.heapify(ranked)
        while ranked:
            rank, number, line = heapq.heappop(ranked)
            head = self._head(line)
            if head is None:
                continue
            # Each start moves its team and person back, and nothing moves anybody forward: stored ranks are bounds.
            current = self._ranking.rank(head)
            if current > rank and ranked and current > ranked[0][0]:
                heapq.heappush(ranked, (current, number, line))
            elif obstacles := self._consider(line, head):
                self._blocked.append((line, obstacles))
            else:
                heapq.heappush(ranked, (current, number, line))
        for job in [job for job in self._state.claims if job not in self._books.claims]:
            self._do(Release(job))

    def _head(self, line: Line) -> WaitingJob | None:
        """Return the first job of a line that neither was started nor waits for others to leave."""
        waiting, claims = self._state.waiting, self._books.claims
        while (job := line.head) and (job.id not in waiting or job.id in claims or job.id in self._promised):
            line.position += 1
        return job

    def _do(self, action: Action) -> None:
        self._state.apply(action)
        self.actions.append(action)

    def _start_claimants(self) -> None:
        for name in list(self._books.claims):
            job = self._state.waiting[name]
            placement = self._books.room_of_claim(name).place(job.request)
            if placement is not None:
                self._start(job, placement, within=True)

    def _start(self, job: WaitingJob, placement: Placement, within: bool) -> None:
        self._books.start(job, placement)
        for reservation in self._reservations.values():
            if not reservation.outlasts(self._state.end_of(job)):
                reservation.beside.take(placement)
        self._do(Start(job.id, within, placement))

    # --- one job ---

    def _consider(self, line: Line, job: WaitingJob) -> tuple[Reason, ...]:
        """Start a job or claim room for it; otherwise return why it waits."""
        if obstacle := self._books.capped.obstacle(job, asked(job.request)):
            return (obstacle,)
        within = self._ranking.rank(job)[0] == 0
        keeping = self._reservations_before(job, within)
        # Room only shrinks during a pass, so a job that is like a blocked one in all that matters is blocked too.
        kind = (job.team, within, self._ranking.is_overdue(job), line.shape, *(kept.job.id for kept in keeping))
        if kind not in self._known:
            found = self._consider_kind(line, job, within, keeping)
            if not found:
                return ()
            self._known[kind] = found
        return self._known[kind]

    def _consider_kind(
        self, line: Line, job: WaitingJob, within: bool, keeping: list[Reservation]
    ) -> tuple[Reason, ...]:
        placement = self._place(line, job, keeping)
        if placement is not None:
            self._start(job, placement, within)
            return ()
        if keeping and self._place(line, job, []) is not None:
            found: tuple[Reason, ...] = (reasons.reserved(keeping[-1]),)
        elif not self._is_possible(line, job):
            return (self._lack(line, job),)
        elif self._fits_but_for_ray(line, job):
            found = (reasons.lags(),)
        elif within and not self._books.shares.alone:
            if self._claim(line, job):
                return ()
            found = (self._lack(line, job), reasons.protected(job, self._books.shares))
        else:
            return self._borrow(line, job, within)
        self._reserve(line, job, within)
        return found

    def _reservations_before(self, job: WaitingJob, within: bool) -> list[Reservation]:
        """Return the reservations that a job may not use.

        A job within its share precedes all others, else a large borrower could delay what a team is owed. Only its own
        team's overdue job is served before it, and any job where there is one team only.
        """
        return [
            kept
            for kept in self._reservations.values()
            if not kept.outlasts(self._state.end_of(job))
            and (not within or self._books.shares.alone or (kept.overdue and kept.job.team == job.team))
        ]

    def _place(self, line: Line, job: WaitingJob, keeping: list[Reservation]) -> Placement | None:
        key = ("start", line.shape, *(kept.job.id for kept in keeping))
        # Room only shrinks during a pass, so what did not fit does not fit.
        if key in self._failed:
            return None
        room = self._books.room
        for kept in keeping:
            room = room.within(kept.beside)
        placement = room.place(job.request)
        if placement is None:
            self._failed.add(key)
        return placement

    def _is_possible(self, line: Line, job: WaitingJob) -> bool:
        """Return whether a job fits on the empty nodes."""
        if line.shape not in self._possible:
            self._possible[line.shape] = self._empty.place(job.request) is not None
        return self._possible[line.shape]

    def _fits_but_for_ray(self, line: Line, job: WaitingJob) -> bool:
        """Return whether a job fits by our own accounts."""
        key = ("own", line.shape)
        if key not in self._failed and self._books.own.place(job.request) is None:
            self._failed.add(key)
        return key not in self._failed

    def _lack(self, line: Line, job: WaitingJob) -> Reason:
        if line.shape not in self._lacking:
            self._lacking[line.shape] = reasons.lacks_room(job, self._state.view.nodes, self._books.room)
        return self._lacking[line.shape]

    # --- room that others hold ---

    def _claim(self, line: Line, job: WaitingJob) -> bool:
        """Claim room for a job within its share, and ask those to leave who hold it; return whether there is enough."""
        victims, placement = self._victims(line, job, job.team, within=True)
        if placement is None:
            return False
        deadline = self._state.now + self._state.rules.grace_s
        latest = max(victim.notice.deadline if victim.notice else deadline for victim in victims)
        claim = Claim(job.id, frozenset(victim.id for victim in victims), latest, placement)
        self._do(Hold(claim))
        self._books.claim(claim, job)
        self._ask(victims, job)
        return True

    def _victims(
        self, line: Line, job: WaitingJob, name: str, within: bool
    ) -> tuple[list[RunningJob], Placement | None]:
        """Return the jobs that leave, or have to, so that a job fits, and where it then does; no place if none do."""
        key = ("victims", name, line.shape)
        able = [] if key in self._failed else [*self._state.leaving(), *self._reclaim.order(job, within)]
        victims = fewest(able, job, self._books.base) if able else None
        if not victims:
            self._failed.add(key)
            return [], None
        room = self._books.base.copy()
        for victim in victims:
            room.give(victim.placement)
        return victims, room.place(job.request)

    def _ask(self, victims: list[RunningJob], job: WaitingJob) -> None:
        deadline = self._state.now + self._state.rules.grace_s
        for victim in victims:
            if victim.notice is None:
                claimant = "" if is_overtime(victim, self._state.now) else job.id
                why = reasons.why_reclaimed(victim, job, self._books.shares, self._state.now)
                self._do(Ask(victim.id, deadline, claimant, why))
        self._reclaim = Reclaim(self._state.running.values(), self._books.shares, self._state.now, self._state.rules)

    def _borrow(self, line: Line, job: WaitingJob, within: bool) -> tuple[Reason, ...]:
        """Ask jobs to leave that anybody may take from, if that is enough; otherwise return why the job waits."""
        self._reserve(line, job, within)
        found: tuple[Reason, ...] = (self._lack(line, job),)
        if not self._books.shares.alone:
            key = (job.team, line.shape)
            if key not in self._beyond:
                self._beyond[key] = reasons.beyond_share(job, self._books.shares)
            found = (*found, self._beyond[key])
        victims, placement = self._victims(line, job, "borrow", within=False)
        if placement is None:
            return found
        self._ask(victims, job)
        self._promised[job.id] = (*found, reasons.waits_for(victims, Rule.LIMIT))
        self._books.promise(job, placement)
        return ()

    def _reserve(self, line: Line, job: WaitingJob, within: bool) -> None:
        """Keep room for the first job of its kind that does not fit."""
        overdue = self._ranking.is_overdue(job)
        key = ("reserve", within, overdue, line.shape)
        if within in self._reservations or key in self._failed:
            return
        room = self._books.base.copy()
        for earlier in self._reservations.values():
            room.take(earlier.placement)
        kept = reserve(job, overdue, room, self._books.leaving(job, within))
        if kept is None:
            self._failed.add(key)
        else:
            self._reservations[within] = kept

    # --- explanations ---

    def explanations(self, latest_starts: Mapping[str, float | None], all_jobs: bool = False) -> Iterator[Say]:
        """Yield an explanation for the first job of each line and those with a claim, or for all jobs."""
        places = self._ranking.places()
        for job, why, latest in self._explained(all_jobs):
            yield Say(job.id, why, places.of(job), latest_starts.get(job.id, latest))

    def _explained(self, all_jobs: bool) -> Iterator[tuple[WaitingJob, tuple[Reason, ...], float | None]]:
        state = self._state
        kept = [one for one in self._reservations.values() if one.time < math.inf]
        latest = {one.job.id: max(state.now, one.time) for one in kept}
        for name, claim in self._books.claims.items():
            why = reasons.waits_for(reasons.ordered(claim, state.running), Rule.CLAIM)
            yield state.waiting[name], (why,), claim.deadline + state.rules.hold_back_s
        for name, found in self._promised.items():
            yield state.waiting[name], found, latest.get(name)
        for line, found in self._blocked:
            for job in line.jobs[line.position :] if all_jobs else (line.jobs[line.position],):
                if job.id in state.waiting and job.id not in self._books.claims:
                    yield job, found, latest.get(job.id)
