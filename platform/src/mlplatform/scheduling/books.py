"""Accounts of one pass of the planner: room on the nodes, claims on it, and what teams and persons hold."""

from __future__ import annotations

import math
from collections.abc import Iterable

from mlplatform.scheduling.caps import Capped
from mlplatform.scheduling.queue import Claim, Placement, RunningJob, WaitingJob
from mlplatform.scheduling.reserve import Leaving
from mlplatform.scheduling.room import Amounts, Room, asked
from mlplatform.scheduling.shares import EPSILON, Shares
from mlplatform.scheduling.state import State


class Books:
    """Free, claimed and held resources of a state.

    Attributes:
        shares: shares of the teams, and what they hold with their claims.
        capped: what teams, persons and groups of jobs hold with their claims.
        claims: claims that can still be met.
        own: free by our own accounts, less what is kept for claims.
        room: the same, but never more than Ray reports as free.
        base: free by our own accounts, less the whole claims; negative while jobs that leave for them still run.
        later: the same, once all jobs have left that were asked to.
    """

    def __init__(self, state: State) -> None:
        """Compute the accounts of a state.

        Args:
            state: what is known.
        """
        self._state = state
        view = state.view
        self.shares = Shares(view.teams, view.nodes)
        self.capped = Capped(view.teams)
        self.own = Room(view.nodes, {node.name: node.total for node in view.nodes if node.alive})
        for running in state.running.values():
            self.own.take(running.placement)
            self._hold(running, self.shares.amount(running))
        self.claims = {claim.job: claim for claim in self._possible()}
        self.base = self.own.copy()
        self.later = self.own.copy()
        for leaving in state.leaving():
            self.later.give(leaving.placement)
        self.room = self.own.within(state.ray)
        self._left: dict[str, Amounts] = {}
        self._kept: dict[str, Placement] = {}
        for claim in self.claims.values():
            job = state.waiting[claim.job]
            self._promise(claim.placement)
            self._keep(claim)
            self._hold(job, asked(job.request))

    def _hold(self, job: WaitingJob | RunningJob, amount: tuple[float, float]) -> None:
        self.shares.add(job.team, amount)
        self.capped.add(job, amount)

    def _promise(self, placement: Placement) -> None:
        self.base.take(placement)
        self.later.take(placement)

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

    def _keep(self, claim: Claim) -> None:
        """Keep free what a claim needs and its own victims will not free, nor have promised to earlier claims."""
        running = self._state.running
        for victim in claim.victims:
            if victim in running and victim not in self._left:
                placement = running[victim].placement
                self._left[victim] = {name: dict(there) for name, there in placement.items()}
        victims = [self._left[victim] for victim in sorted(claim.victims) if victim in self._left]
        kept = {
            name: {key: value - _draw(victims, name, key, value) for key, value in there.items()}
            for name, there in claim.placement.items()
        }
        self._kept[claim.job] = kept
        self.own.take(kept)
        self.room.take(kept)

    def room_of_claim(self, job: str) -> Room:
        """Return the room for a job that has a claim."""
        room = self.room.copy()
        room.give(self._kept[job])
        return room

    def is_within(self, job: WaitingJob) -> bool:
        """Return whether a job with a claim is within its team's share."""
        amount = asked(job.request)
        self.shares.add(job.team, (-amount[0], -amount[1]))
        within = self.shares.includes(job.team, amount)
        self.shares.add(job.team, amount)
        return within

    def start(self, job: WaitingJob, placement: Placement) -> None:
        """Count a job that starts; its claim ends."""
        claim = self.claims.pop(job.id, None)
        if claim:
            self.base.give(claim.placement)
            self.later.give(claim.placement)
            self._keep_again()
        else:
            self._hold(job, asked(job.request))
        for room in (self.base, self.later, self.own, self.room):
            room.take(placement)

    def _keep_again(self) -> None:
        """Keep what the claims need that are left, since what victims of one that ends will free is for the others."""
        for kept in self._kept.values():
            self.own.give(kept)
            self.room.give(kept)
        self._left.clear()
        self._kept.clear()
        for claim in self.claims.values():
            self._keep(claim)

    def claim(self, claim: Claim, job: WaitingJob) -> None:
        """Count a new claim."""
        self.claims[job.id] = claim
        self._hold(job, asked(job.request))
        self._promise(claim.placement)
        self._keep(claim)

    def promise(self, job: WaitingJob, placement: Placement) -> None:
        """Count a job that waits without a claim for others to leave, so that the next one waits for different ones."""
        self._hold(job, asked(job.request))
        self._promise(placement)

    def asked(self, victims: Iterable[RunningJob]) -> None:
        """Count what jobs will free that have just been asked to leave."""
        for victim in victims:
            self.later.give(victim.placement)

    def leaving(self, job: WaitingJob) -> list[Leaving]:
        """Return what becomes free for a waiting job within its share, and when."""
        state = self._state
        borrowed: set[str] = set()
        if not self.shares.alone:
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
            return min(limit, state.now + grace)
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
