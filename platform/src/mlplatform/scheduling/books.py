"""Accounts of one pass of the planner: room on the nodes, claims on it, and what teams and persons hold."""

from __future__ import annotations

import math
from collections.abc import Iterable

from mlplatform.scheduling.caps import Capped
from mlplatform.scheduling.queue import Claim, Placement, RunningJob, WaitingJob
from mlplatform.scheduling.reclaim import protected_until
from mlplatform.scheduling.reserve import Leaving
from mlplatform.scheduling.room import Amounts, Room, asked
from mlplatform.scheduling.shares import EPSILON, Shares
from mlplatform.scheduling.state import State


class Books:
    """Free, claimed and held resources of a state.

    Attributes:
        version: changes with what is held.
        shares: shares of the teams, and what they hold with their claims.
        capped: what teams, persons and arrays hold with their claims.
        claims: claims that can still be met.
        own: free by our own accounts, less what is kept for claims.
        room: the same, but never more than Ray reports as free.
        base: free by our own accounts, less the whole claims; negative while jobs that leave for them still run.
    """

    def __init__(self, state: State) -> None:
        """Compute the accounts of a state.

        Args:
            state: what is known.
        """
        self._state = state
        self.version = 0
        view = state.view
        self.shares = Shares(view.teams, view.nodes)
        self.capped = Capped(view.teams)
        self.own = Room(view.nodes, {node.name: node.total for node in view.nodes if node.alive})
        for running in state.running.values():
            self.own.take(running.placement)
            self._hold(running, self.shares.amount(running))
        self.claims = {claim.job: claim for claim in self._possible()}
        self.base = self.own.copy()
        self._kept = self._keep()
        for claim in self.claims.values():
            job = state.waiting[claim.job]
            self.base.take(claim.placement)
            self.own.take(self._kept[claim.job])
            self._hold(job, asked(job.request))
        ray = state.ray.copy()
        for kept in self._kept.values():
            ray.take(kept)
        self.room = self.own.within(ray)

    def _hold(self, job: WaitingJob | RunningJob, amount: tuple[float, float]) -> None:
        self.version += 1
        self.shares.add(job.team, amount)
        self.capped.add(job, amount)

    def _possible(self) -> list[Claim]:
        """Return the claims that are met once the jobs which were asked to leave for them have left.

        Where all of them together are more than will be free, as after the loss of a node, the latest are dropped.
        """
        state = self._state
        claims = [claim for claim in state.claims.values() if claim.job in state.waiting and self._is_intact(claim)]
        claims.sort(key=lambda claim: (claim.deadline, state.waiting[claim.job].sequence))
        free = self.own.copy()
        for job in self._victims(claims):
            free.give(job.placement)
        for claim in claims:
            free.take(claim.placement)
        possible = list(claims)
        for claim in reversed(claims):
            if any(free.free[name].get(key, 0) < -EPSILON for name, there in claim.placement.items() for key in there):
                possible.remove(claim)
                free.give(claim.placement)
                others = {job.id for job in self._victims(possible)}
                for job in self._victims([claim]):
                    if job.id not in others:
                        free.take(job.placement)
        return possible

    def _is_intact(self, claim: Claim) -> bool:
        running, alive = self._state.running, self.shares.alive
        leaving = all(self._state.is_leaving(running[victim]) for victim in claim.victims if victim in running)
        return leaving and all(name in alive for name in claim.placement)

    def _victims(self, claims: Iterable[Claim]) -> list[RunningJob]:
        """Return the jobs that still run and leave for claims."""
        names = {victim for claim in claims for victim in claim.victims}
        return [job for job in self._state.running.values() if job.id in names]

    def _keep(self) -> dict[str, Placement]:
        """Return what has to be kept free for each claim: what its own victims will not free."""
        left: dict[str, Amounts] = {
            job.id: {name: dict(there) for name, there in job.placement.items()}
            for job in self._victims(self.claims.values())
        }
        kept: dict[str, Placement] = {}
        for claim in self.claims.values():
            victims = [left[victim] for victim in sorted(claim.victims) if victim in left]
            kept[claim.job] = {
                name: {key: value - _draw(victims, name, key, value) for key, value in there.items()}
                for name, there in claim.placement.items()
            }
        return kept

    def room_of_claim(self, job: str) -> Room:
        """Return the room for a job that has a claim."""
        room = self.room.copy()
        room.give(self._kept[job])
        return room

    def start(self, job: WaitingJob, placement: Placement) -> None:
        """Count a job that starts; its claim ends."""
        claim = self.claims.pop(job.id, None)
        if claim:
            kept = self._kept.pop(job.id)
            self.base.give(claim.placement)
            self.own.give(kept)
            self.room.give(kept)
        else:
            self._hold(job, asked(job.request))
        for room in (self.base, self.own, self.room):
            room.take(placement)

    def claim(self, claim: Claim, job: WaitingJob) -> None:
        """Count a new claim."""
        self.claims[job.id] = claim
        self._hold(job, asked(job.request))
        self.base.take(claim.placement)
        before, self._kept = self._kept, self._keep()
        for kept in before.values():
            self.own.give(kept)
            self.room.give(kept)
        for kept in self._kept.values():
            self.own.take(kept)
            self.room.take(kept)

    def promise(self, job: WaitingJob, placement: Placement) -> None:
        """Count a job that waits without a claim for others to leave, so that the next one waits for different ones."""
        self._hold(job, asked(job.request))
        self.base.take(placement)

    def leaving(self, job: WaitingJob, within: bool) -> list[Leaving]:
        """Return what becomes free for a waiting job, and when.

        Args:
            job: the waiting job.
            within: whether it may take back what other teams have borrowed.
        """
        state = self._state
        borrowed: set[str] = set()
        if within and not self.shares.alone:
            for team in state.view.teams:
                if team != job.team:
                    staying = [one for one in state.running.values() if one.team == team and one.notice is None]
                    borrowed |= self.shares.borrowed(team, staying)
        found = [
            Leaving(self._end(one, one.id in borrowed), (one.started, one.sequence), one.placement)
            for one in state.running.values()
        ]
        for claim in self.claims.values():
            claimant = state.waiting[claim.job]
            end = math.inf if claimant.limit_s is None else claim.deadline + claimant.limit_s + state.rules.grace_s
            found.append(Leaving(end, (state.now, claimant.sequence), claim.placement))
        return found

    def _end(self, job: RunningJob, borrowed: bool) -> float:
        """Return the latest time at which a running job has left, if a job waits for it."""
        state, grace = self._state, self._state.rules.grace_s
        if job.notice is not None:
            return job.notice.deadline if state.is_leaving(job) else math.inf
        limit = math.inf if job.ends_by is None else max(state.now, job.ends_by) + grace
        if borrowed or job.idle:
            return min(limit, max(state.now, protected_until(job, state.rules)) + grace)
        return limit


def _draw(victims: list[Amounts], name: str, key: str, needed: float) -> float:
    """Take an amount from what victims will free on a node, and return how much of it they had."""
    drawn = 0.0
    for left in victims:
        there = left.get(name, {})
        part = min(needed - drawn, max(0.0, there.get(key, 0.0)))
        if part > 0:
            there[key] -= part
            drawn += part
    return drawn
