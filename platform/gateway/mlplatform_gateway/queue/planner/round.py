"""One round of the planner: decisions for a state, in the order of the waiting jobs' ranks."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Sequence
from itertools import count

from mlplatform_gateway.queue.planner import reasons
from mlplatform_gateway.queue.planner.backfill import Reservation, reserve
from mlplatform_gateway.queue.planner.order import Order, Rank
from mlplatform_gateway.queue.planner.preemption import Right, borrowers, fewest, for_anybody, is_overtime
from mlplatform_gateway.queue.planner.queue import (
    Action,
    Placement,
    Preempt,
    Reason,
    Reserve,
    Rule,
    RunningJob,
    Start,
    WaitingJob,
)
from mlplatform_gateway.queue.planner.room import Room
from mlplatform_gateway.queue.planner.state import Age, Group, Line, State

_Entry = tuple[Rank, int, Right, Group, Line, bool]
"""Rank of a line's first job, a number, its right, its group and line, and whether the next line comes after it."""


class Round:
    """Decisions for a state up to the first action after a job had to wait.

    What each job is promised is not kept, but derived in each round. Jobs within their teams' shares are first, so no
    other job is promised what these need.

    Only the first line of a group is considered, and once its first job does not fit, no other is. The time of a plan
    therefore grows with what starts, and hardly with what waits.

    Attributes:
        actions: by which the state has been changed.
        promises: room of jobs that wait until others have left, or until Ray reports it as free.
        lagging: room of jobs for which enough is free by our own accounts, but not by Ray's.
        reservation: room that is kept for a job within its share that fits nowhere; None if there is none.
        obstacles: by line, what keeps it waiting, and not all jobs of its team and shape.
        shares: what teams and persons hold, and are promised.
        order: the order of the jobs.
        now: what is free by our own accounts and by Ray's, less what is promised.
    """

    def __init__(self, state: State) -> None:
        self.actions: list[Action] = []
        self.promises: dict[str, Placement] = {}
        self.reservation: Reservation | None = None
        self.lagging: dict[str, Placement] = {}
        self.obstacles: dict[Line, Reason] = {}
        self.shares = state.shares.copy()
        self.now = state.free.copy()
        self.order = Order(state, self.shares)
        self._state = state
        self._free, self._later, self._certain = state.own.copy(), state.later.copy(), state.certain.copy()
        self._beside = self.now.copy()
        """Room beside the reservation."""
        self._blocked: dict[tuple[str, Hashable], set[Right]] = {}
        self._capped: list[WaitingJob] = []
        # Numbers of the entries, and that of the last change of each team.
        self._number, self._changed = count(), dict[str, int]()
        self._heap: list[_Entry] = []
        self._following = {group: iter(lines) for group, lines in state.groups.items()}
        for group in self._following:
            self._push_next(group)
        self._run()

    def _run(self) -> None:
        while self._heap:
            _, number, right, group, line, is_first = heapq.heappop(self._heap)
            jobs = self._state.lines[line]
            if jobs and number < self._changed.get(group[0], 0):
                self._push(group, line, is_first)  # its team has got something, and nothing moves anybody forward
                continue
            known = self._blocked.get(group[:2], ())
            is_blocked = right in known or (right is Right.NONE and known)
            if is_first and (not is_blocked or (right is Right.SENIOR and group[2] is Age.OVERDUE)):
                self._push_next(group)
            if jobs and not is_blocked and (job := jobs[0]).id not in self.lagging:
                self._serve(job, right)
                if self._is_over(jobs):
                    return
                if jobs[:1] != [job]:
                    self._push(group, line, False)

    def _push(self, group: Group, line: Line, is_first: bool) -> None:
        job = self._state.lines[line][0]
        right = self.order.right(job, group[2])
        # Behind a senior job without a right to its team's share are only later ones.
        if right is Right.SENIOR or group[2] is not Age.SENIOR:
            heapq.heappush(self._heap, (self.order.rank(job, right), next(self._number), right, group, line, is_first))

    def _push_next(self, group: Group) -> None:
        for line in self._following[group]:
            if self._state.lines[line]:
                self._push(group, line, True)
                return

    def _is_over(self, jobs: Sequence[WaitingJob]) -> bool:
        """Return whether the round ends; a team's less urgent jobs may move forward once the last of a line starts."""
        last = self.actions[-1] if self.actions else None
        return bool(last and (self.promises or self._blocked or not isinstance(last, Start) or not jobs))

    # --- one job ---

    def _serve(self, job: WaitingJob, right: Right) -> None:
        """Start a job, promise it room, or note what keeps it waiting.

        Room only shrinks during a round, so once a job does not fit, the others of its team and shape do not either.
        """
        line, kept = self._state.line(job), self._kept_from(job, right)
        if obstacle := reasons.cap(job, self.shares):
            self.obstacles[line] = self._capped_by(job, obstacle)
        elif (placement := self._place(job, self._beside if kept else self.now)) is not None:
            self._do(Start(job.id, self.shares.includes(job), placement))
            self._take(job, placement)
        elif kept and self._place(job, self.now) is not None:
            self.obstacles[line] = reasons.reserved(kept.job)
        elif right is Right.YIELDS:
            self.obstacles[line] = reasons.yields(job)
        elif not self._make_room(job, right):
            self._blocked.setdefault((job.team, job.request.shape), set()).add(right)

    def _capped_by(self, job: WaitingJob, cap: Reason) -> Reason:
        """Return what keeps a job waiting that a cap does; later jobs leave an overdue one the room beneath the cap."""
        rule = cap.rule
        if rule is Rule.GROUP:
            return cap
        for other in self._capped:
            if other.team == job.team and (rule is Rule.CAP_TEAM or other.person == job.person):
                return reasons.reserved(other)
        if self._state.is_overdue(job) and self._state.could_run(job):
            self.shares.add(job, (job.team,) if rule is Rule.CAP_TEAM else (job.team, job.person))
            self._change(job.team)
            self._capped.append(job)
        return cap

    def _place(self, job: WaitingJob, room: Room) -> Placement | None:
        """Return where a job fits in a room: where others left for it, or else anywhere."""
        if (reserved := self._state.reserved(job)) and room.holds(reserved.placement):
            return reserved.placement
        return room.place(job.request)

    def _kept_from(self, job: WaitingJob, right: Right) -> Reservation | None:
        """Return the reservation that a job may not use, if any.

        Borrowers leave room to what is within a share. Among jobs within their shares, each team has its own room, so
        only its own team's overdue job is served before a job, and any job where there is one team only.
        """
        kept = self.reservation
        if kept is None or kept.outlasts(job, self._state):
            return None
        precedes = right > Right.SENIOR or self.shares.alone or (kept.overdue and kept.job.team == job.team)
        return kept if precedes else None

    def _do(self, action: Action) -> None:
        self._state.apply(action)
        self.actions.append(action)

    def _take(self, job: WaitingJob, placement: Placement, lags: bool = False) -> None:
        """Count what a job holds that has been started, is promised its room, or waits for Ray to report it as free."""
        self.shares.add(job)
        rooms = self._free, self._later, self.now, self._beside, self._certain
        for room in rooms[:2] if lags else rooms:
            room.take(placement)
        self._change(job.team)

    def _change(self, team: str) -> None:
        self.order.forget(team)
        self._changed[team] = next(self._number)

    # --- room that others hold ---

    def _make_room(self, job: WaitingJob, right: Right) -> bool:
        """Promise a job that does not fit what others leave, or preempt them; return whether it gets room.

        Others do not use what is promised meanwhile. If they might where enough leaves in time, the prototype's mean
        completion was the same, and on three of six workloads more than 1 % of the waits within a share exceeded the
        grace.

        Nobody leaves for room that only Ray counts as used, and with a right to it nobody else gets it, so that small
        jobs do not take a node again whose last job has just ended. If Ray still counts it after `hold_back_s`, a
        program outside of jobs holds it: then others leave elsewhere, and jobs that fit beside the program start.
        """
        if self._state.empty.place(job.request) is None:
            return False
        if (reserved := self._state.reserved(job)) and self._later.holds(reserved.placement):
            return self._promise(job, right, reserved.placement)
        lags = self._free.place(job.request)
        if lags is not None and right is Right.NONE:
            return self._count_lag(job, lags)
        if lags is not None and not self._state.lags(job):
            return self._promise(job, right, lags)
        later = self._later if lags is None else self._certain
        if (placement := later.place(job.request)) is not None:
            return self._promise(job, right, placement)
        if self._preempt(job, right, later):
            return True
        if self.reservation is None and self.shares.includes(job):
            self._keep_room(job, self._free if lags is None else self.now)
        return lags is not None and self._count_lag(job, lags)

    def _promise(self, job: WaitingJob, right: Right, placement: Placement) -> bool:
        reserved = self._state.reserved(job)
        if reserved is None or reserved.placement != placement:
            self._do(Reserve(job.id, placement, self._state.latest_end(job, placement)))
        self.promises[job.id] = placement
        if right <= Right.SENIOR:
            self.order.first[job.team].append(job)
        self._take(job, placement)
        return True

    def _count_lag(self, job: WaitingJob, lags: Placement) -> bool:
        self.lagging[job.id] = lags
        self._take(job, lags, lags=True)
        return False

    def _preempt(self, job: WaitingJob, right: Right, later: Room) -> bool:
        """Preempt the next one of the jobs after which a job fits; return whether there are such jobs.

        For any job those leave that have reached their limit or are idle; with a right to room, borrowers leave too.
        If those that leave for anybody do not help, they stay, and a team that is beyond its share only with them has
        to return what it borrows.
        """
        now, staying = self._state.now, self._state.staying()
        anybody = for_anybody(staying, now)
        names = {victim.id for victim in anybody}
        lenders = right < Right.NONE and not self.shares.alone
        first = dict(self.order.first)
        if right is Right.SENIOR:
            first[job.team] = [*self.order.before(job), job]

        def orders() -> Iterator[list[RunningJob]]:
            others = [one for one in staying if one.id not in names]
            yield [*anybody, *(borrowers(others, self.shares, job, right, first) if lenders else ())]
            if anybody and lenders:
                yield [one for one in borrowers(staying, self.shares, job, right, first) if one.id not in names]

        victim = next((victim for order in orders() for victim in fewest(order, job.request, later)), None)
        if victim is None:
            return False
        why = reasons.why_preempted(victim, job, self.shares if right <= Right.SENIOR else None, now)
        claimant = "" if is_overtime(victim, now) else job.id
        self._do(Preempt(victim.id, now + self._state.rules.grace_s, claimant, why))
        return True

    def _keep_room(self, job: WaitingJob, free: Room) -> None:
        """Keep room for the first job within its share that does not fit, for which nobody leaves.

        None is kept for borrowers: people ask for far longer limits than they need, so it would mostly idle. Where
        teams lend, jobs within shares have what they need anyhow: without this room, the prototype's figures of eight
        workloads were the same. It is for clusters of one team, where nobody leaves for a large job.
        """
        self.reservation = reserve(job, self._state, free)
        if self.reservation:
            self._beside = self.now.within(self.reservation.beside)
