"""Accounts of one pass of the planner: room on the nodes, claims on it, and what teams and persons hold.

Claims of jobs within their teams' shares precede: they are served as if the claims of other jobs did not exist, and one
of these that then lacks its room is released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mlplatform_gateway.queue.planner.queue import Claim, Placement, RunningJob, WaitingJob
from mlplatform_gateway.queue.planner.room import Room
from mlplatform_gateway.queue.planner.shares import EPSILON, Shares
from mlplatform_gateway.queue.planner.state import State


class Accounts:
    """Free, claimed and held resources of a state.

    Attributes:
        shares: shares of the teams, and what they hold with their claims.
        claims: claims that will have their room, in the order in which they are served.
    """

    def __init__(self, state: State) -> None:
        """Compute the accounts of a state.

        Args:
            state: what is known.
        """
        self._state = state
        self.shares = Shares(state.view.teams, state.view.nodes)
        self._own = Room(state.view.nodes, {node.name: node.total for node in state.view.nodes if node.alive})
        self._promised: list[Placement] = []
        self._rooms: dict[tuple[str, bool], Room] = {}
        for running in state.running.values():
            self._own.take(running.placement)
            self.shares.add(running)
        self.claims: list[Claim] = []
        self._claim(claim for claim in state.claims.values() if self._is_intact(claim))
        while lacking := self._lacking():
            self.claims.remove(lacking)
            self.shares.add(state.waiting[lacking.job], -1)

    def _is_intact(self, claim: Claim) -> bool:
        running = self._state.running
        return (
            claim.job in self._state.waiting
            and all(self._state.is_leaving(running[victim]) for victim in claim.victims if victim in running)
            and all(name in self.shares.alive for name in claim.placement)
        )

    def _claim(self, claims: Iterable[Claim]) -> None:
        waiting = self._state.waiting
        for claim in claims:
            self.claims.append(claim)
            self.shares.add(waiting[claim.job])
        self.claims.sort(
            key=lambda claim: (not self.is_within(waiting[claim.job]), claim.deadline, waiting[claim.job].sequence)
        )
        self._rooms.clear()

    def _lacking(self) -> Claim | None:
        """Return the last claim on a node that has too little even when all those have left that leave for claims."""
        free = self._own.copy()
        for victim in self._leaving_for(self.claims):
            free.give(victim.placement)
        for claim in self.claims:
            free.take(claim.placement)
        for claim in reversed(self.claims):
            if any(free.free[name].get(key, 0) < -EPSILON for name, there in claim.placement.items() for key in there):
                return claim
        return None

    def _leaving_for(self, claims: Iterable[Claim]) -> list[RunningJob]:
        names = {victim for claim in claims for victim in claim.victims}
        return [job for job in self._state.running.values() if job.id in names]

    def is_within(self, job: WaitingJob) -> bool:
        """Return whether a job with a claim is within its team's share."""
        self.shares.add(job, -1)
        within = self.shares.includes(job)
        self.shares.add(job)
        return within

    # --- room ---

    def free(self, within: bool) -> Room:
        """Return the room for a job that starts: `own`, but never more than Ray reports as free.

        Args:
            within: whether the job is within its team's share.
        """
        return self._cached("free", within, lambda: self.own(within).within(self._state.ray))

    def own(self, within: bool) -> Room:
        """Return what is free by our own accounts, and stays so as the claims are served that bind a job."""
        claims = [claim for claim in self.claims if self._binds(claim, within)]
        return self._cached("own", within, lambda: self._beside(claims))

    def _cached(self, name: str, within: bool, room: Callable[[], Room]) -> Room:
        if (name, within) not in self._rooms:
            self._rooms[name, within] = room()
        return self._rooms[name, within]

    def of_claim(self, claim: Claim) -> Room:
        """Return the room for a job that has a claim: what the others leave that bind it, and Ray reports as free."""
        within = self.is_within(self._state.waiting[claim.job])
        others = [other for other in self.claims if other is not claim and self._binds(other, within)]
        return self._beside(others).within(self._state.ray)

    def _binds(self, claim: Claim, within: bool) -> bool:
        return not within or self.is_within(self._state.waiting[claim.job])

    def _beside(self, claims: Sequence[Claim]) -> Room:
        """Return what is free now, and also after the first of these claims has been served, the second, and so on."""
        free, after, left = self._own.copy(), self._own.copy(), set[str]()
        for claim in claims:
            for victim in self._leaving_for([claim]):
                if victim.id not in left:
                    after.give(victim.placement)
                    left.add(victim.id)
            after.take(claim.placement)
            free = free.within(after, claim.placement)
        return free

    def later(self, within: bool) -> Room:
        """Return what will be free once all preempted jobs have left and all claims that bind a job are served."""
        room = self.base(within)
        for job in self._state.leaving():
            room.give(job.placement)
        return room

    def base(self, within: bool = False) -> Room:
        """Return what is free less the claims that bind a job; negative while jobs that leave for them still run."""
        room = self._own.copy()
        for placement in (*self._promised, *(claim.placement for claim in self.claims if self._binds(claim, within))):
            room.take(placement)
        return room

    # --- changes ---

    def start(self, job: WaitingJob, placement: Placement) -> None:
        """Count a job that starts; its claim ends."""
        claim = next((claim for claim in self.claims if claim.job == job.id), None)
        if claim:
            self.claims.remove(claim)
            self._rooms.clear()
        else:
            self.shares.add(job)
        for room in (self._own, *self._rooms.values()):
            room.take(placement)

    def claim(self, claim: Claim) -> None:
        """Count a new claim."""
        self._claim([claim])

    def promise(self, job: WaitingJob, placement: Placement) -> None:
        """Count a job within its share that only waits for Ray to free its room, which no borrower may claim."""
        self.shares.add(job)
        self._promised.append(placement)
