"""Placement of running jobs on the nodes: Ray's listing has only the sums per node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mlplatform.capacity.resources import Node, Request, Resources, subtract
from mlplatform_gateway.queue.planner.queue import Placement
from mlplatform_gateway.queue.planner.room import EPSILON, Room


@dataclass(frozen=True)
class Footprint:
    """Request of a running job, and the resources that its processes hold.

    Attributes:
        request: everything that it requests.
        runs: whether its entry point runs, and thus holds its resources.
        young: whether it has started so lately that its entry point may not have requested the workers yet, and that
            Ray may not count the entry point either.
        held: what its processes hold, by node, as last measured.
    """

    request: Request
    runs: bool
    young: bool
    held: Placement = field(default_factory=dict)

    @property
    def counted(self) -> Request:
        """Part of the request that Ray counts as used."""
        entry = Resources() if self.young and not self.runs else self.request.entrypoint
        return replace(self.request, entrypoint=entry, workers=None if self.young else self.request.workers)

    @property
    def coming(self) -> Request:
        """Part of the request that the job has not taken yet."""
        entry = self.request.entrypoint if self.young and not self.runs else Resources()
        return replace(self.request, entrypoint=entry, workers=self.request.workers if self.young else None)


def place(nodes: Sequence[Node], footprints: Sequence[Footprint]) -> tuple[list[Node], list[Placement]]:
    """Place running jobs on the nodes so that the sums are those of Ray.

    Which of two equal jobs is on which node may be wrong. What Ray counts is in no placement if no job requests it and
    no job's processes hold it, and neither is what a job requests and Ray does not count, unless the job is young.

    Args:
        nodes: as Ray lists them.
        footprints: of the running jobs, the oldest first.

    Returns:
        The nodes, whose free amounts are without what is still to be taken; and the placement of each job.
    """
    used = Room(nodes, {node.name: subtract(node.total, node.free) for node in nodes if node.alive})
    free = Room(nodes, {node.name: node.free for node in nodes if node.alive})
    placements = []
    for footprint in footprints:
        counted = used.place(footprint.counted)
        if counted is None and not footprint.young:
            # Its workers have ended, or a part of them has.
            counted = used.place(replace(footprint.counted, workers=None))
        used.take(counted or {})
        missing = [footprint.counted] if counted is None and footprint.young else []
        placement: Placement = counted or {}
        for coming in (*missing, footprint.coming):
            taken = free.place(coming) or {}
            free.take(taken)
            placement = _together(placement, taken)
        placements.append(placement)
    # Last, so that nobody is taken for the holder of what another job requests.
    for position, footprint in enumerate(footprints):
        surplus = _surplus(footprint.held, placements[position], used)
        used.take(surplus)
        placements[position] = _together(placements[position], surplus)
    return [replace(node, free=free.free[node.name]) if node.alive else node for node in nodes], placements


def _surplus(held: Placement, placement: Placement, used: Room) -> Placement:
    """Return what a job's processes hold beyond its placement, as far as Ray counts it and no other job has it."""
    found: dict[str, dict[str, float]] = {}
    for resource in ("GPU", "CPU"):
        left = amount_in(held, resource) - amount_in(placement, resource)
        for name, amounts in held.items():
            here = amounts.get(resource, 0) - placement.get(name, {}).get(resource, 0)
            more = min(left, here, used.free.get(name, {}).get(resource, 0))
            if more > EPSILON:
                found.setdefault(name, {})[resource] = more
                left -= more
    return found


def amount_in(placement: Placement, resource: str) -> float:
    """Return the amount of a resource that a placement has on all nodes together."""
    return sum(amounts.get(resource, 0) for amounts in placement.values())


def _together(one: Placement, other: Placement) -> Placement:
    found = {name: dict(amounts) for name, amounts in one.items()}
    for name, amounts in other.items():
        there = found.setdefault(name, {})
        for key, value in amounts.items():
            there[key] = there.get(key, 0) + value
    return found
