"""Fitting of jobs into the room of one pass of the planner, and why others wait."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from mlplatform.scheduling import reasons
from mlplatform.scheduling.books import Books
from mlplatform.scheduling.queue import Placement, Reason, RunningJob, WaitingJob
from mlplatform.scheduling.reclaim import fewest
from mlplatform.scheduling.reserve import Reservation
from mlplatform.scheduling.room import Room
from mlplatform.scheduling.state import State


class Fitting:
    """Answers that are equal for all jobs of a shape, and computed once: room only shrinks during a pass."""

    def __init__(self, state: State, books: Books) -> None:
        """Begin with the accounts of a pass, which change.

        Args:
            state: what is known.
            books: accounts of the pass.
        """
        self._nodes = state.view.nodes
        self._books = books
        self._empty = Room(self._nodes, {node.name: node.total for node in self._nodes if node.alive})
        self._failed: set[Hashable] = set()
        self._possible: dict[Hashable, bool] = {}
        self._lacking: dict[Hashable, Reason] = {}

    def place(self, job: WaitingJob, kept: Reservation | None = None) -> Placement | None:
        """Return where a job fits now; None if it does not.

        Args:
            job: the waiting job.
            kept: room that it may not use.
        """
        shape = job.request.shape
        key = (shape, kept.job.id) if kept else (shape,)
        if key in self._failed or (shape,) in self._failed:
            return None
        room = self._books.room.within(kept.beside) if kept else self._books.room
        placement = room.place(job.request)
        if placement is None:
            self._failed.add(key)
        return placement

    def is_possible(self, job: WaitingJob) -> bool:
        """Return whether a job fits on the empty nodes."""
        shape = job.request.shape
        if shape not in self._possible:
            self._possible[shape] = self._empty.place(job.request) is not None
        return self._possible[shape]

    def fits_but_for_ray(self, job: WaitingJob) -> bool:
        """Return whether a job fits by our own accounts."""
        key = ("own", job.request.shape)
        if key not in self._failed and self._books.own.place(job.request) is None:
            self._failed.add(key)
        return key not in self._failed

    def obstacles(self, job: WaitingJob, within: bool) -> tuple[Reason, ...]:
        """Return why a job waits that does not fit.

        Args:
            job: the waiting job.
            within: whether it is within its team's share.
        """
        if not self.is_possible(job):
            return (self._lack(job),)
        if self.fits_but_for_ray(job):
            return (reasons.lags(self._lack(job)),)
        if within and not self._books.shares.alone:
            return self._lack(job), reasons.in_pieces(job, self._books.shares)
        return self.obstacles_of_borrower(job)

    def obstacles_of_borrower(self, job: WaitingJob) -> tuple[Reason, ...]:
        """Return why a job waits that does not fit and is beyond its team's share."""
        if self._books.shares.alone:
            return (self._lack(job),)
        return self._lack(job), reasons.beyond_share(job, self._books.shares)

    def _lack(self, job: WaitingJob) -> Reason:
        shape = job.request.shape
        if shape not in self._lacking:
            self._lacking[shape] = reasons.lacks_room(job, self._nodes, self._books.room)
        return self._lacking[shape]


def outranked(job: WaitingJob, order: Sequence[RunningJob], state: State, books: Books) -> list[str]:
    """Return the claims of jobs beyond their shares, the latest first, that a job within its share needs to fit.

    They are released for it. Otherwise it would wait until those jobs have started, and then for them to leave: twice
    the time that it is promised.

    Args:
        job: the waiting job, for which too few may be asked to leave while these claims exist.
        order: jobs that may be asked to leave for it.
        state: what is known.
        books: accounts of the pass.

    Returns:
        The names of the jobs that have them; none if all of them together do not help.
    """
    beyond = [claim for name, claim in books.claims.items() if not books.is_within(state.waiting[name])]
    room, released = books.later.copy(), []
    for claim in sorted(beyond, key=lambda claim: -state.waiting[claim.job].sequence):
        released.append(claim.job)
        room.give(claim.placement)
        if fewest(order, state.leaving(), job, room)[1] is not None:
            return released
    return []
