"""Room on the nodes that a policy fills, and EASY backfill in a given order.

EASY (Lifka, "The ANL/IBM SP Scheduling System", 1995): jobs start in order; the first that does not fit gets a
reservation at the time when the limits of the running jobs leave room for it, and later jobs start only if they end
before that time or fit beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from placement import place

from mlplatform.scheduling.queue import Placement, Start, View, WaitingJob
from mlplatform.scheduling.resources import Node, Request


class Room:
    """Free resources by node, reduced by the jobs that a policy starts."""

    def __init__(self, nodes: Sequence[Node], free: Mapping[str, Mapping[str, float]] | None = None) -> None:
        self._nodes = nodes
        self.free = {node.name: dict(free[node.name] if free else node.free) for node in nodes}

    @property
    def gpus(self) -> float:
        return sum(amounts.get("GPU", 0.0) for amounts in self.free.values())

    def fits(self, request: Request) -> bool:
        return place(request, self._nodes, self.free) is not None

    def take(self, request: Request) -> Placement | None:
        """Take a job's resources and return them; return None, and take nothing, if it does not fit."""
        placement = place(request, self._nodes, self.free)
        if placement is not None:
            self._add(placement, -1)
        return placement

    def give(self, placement: Placement) -> None:
        self._add(placement, 1)

    def copy(self) -> Room:
        return Room(self._nodes, self.free)

    def _add(self, placement: Placement, sign: int) -> None:
        for node, amounts in placement.items():
            for name, value in amounts.items():
                self.free[node][name] = self.free[node].get(name, 0.0) + sign * value


class Ending(NamedTuple):
    """Time at which a running job ends at the latest, and what it holds."""

    when: float
    placement: Placement


@dataclass(frozen=True)
class Reservation:
    """Time at which a blocked job will fit at the latest, and the room beside it then."""

    when: float
    beside: Room


def gpus_of(job: WaitingJob) -> float:
    """Return the GPUs that a job asks for, entry point and workers."""
    workers = job.request.workers
    return job.request.entrypoint.gpus + (workers.count * workers.gpus if workers else 0)


def reserve(view: View, room: Room, started: Mapping[str, Ending], blocked: WaitingJob) -> Reservation:
    """Find the earliest time by the limits of the running jobs; infinite if they have none.

    Args:
        view: the queue.
        room: what is free beside the jobs in `started`.
        started: jobs that this decision starts, by id.
        blocked: the job that does not fit into `room`.
    """
    later, gpus = room.copy(), gpus_of(blocked)
    ends = {job.id: Ending(_or_infinite(job.ends_by), job.placement) for job in view.running} | started
    for _, ending in sorted(ends.items(), key=lambda end: (end[1].when, end[0])):
        later.give(ending.placement)
        if later.gpus >= gpus and later.take(blocked.request):
            return Reservation(ending.when, later)
    return Reservation(math.inf, later)


def start_in_order(view: View, order: Iterable[WaitingJob]) -> list[Start]:
    """Start jobs in order with EASY backfill."""
    room, started = Room(view.nodes), dict[str, Ending]()
    reservation: Reservation | None = None
    too_large = math.inf
    for job in order:
        if room.gpus <= 0:
            break
        # Workers of one GPU fit anywhere, so a job as large as one that does not fit does not fit either.
        if reservation and gpus_of(job) >= too_large:
            continue
        if not room.fits(job.request):
            reservation = reservation or reserve(view, room, started, job)
            too_large = min(too_large, gpus_of(job))
        elif reservation is None or _delays_nothing(view.now, job, reservation):
            placement = room.take(job.request)
            assert placement is not None, "It fits, as asked above."
            started[job.id] = Ending(view.now + _or_infinite(job.limit_s), placement)
    return [Start(job, False, ending.placement) for job, ending in started.items()]


def _delays_nothing(now: float, job: WaitingJob, reservation: Reservation) -> bool:
    return now + _or_infinite(job.limit_s) <= reservation.when or reservation.beside.take(job.request) is not None


def _or_infinite(time: float | None) -> float:
    return math.inf if time is None else time
