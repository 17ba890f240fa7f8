"""Room on the nodes, into which requests are placed by the packing rules of `capacity`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy

from mlplatform.capacity.resources import Node, Request, subtract
from mlplatform_gateway.queue.planner.feasibility import times
from mlplatform_gateway.queue.planner.queue import Placement

Amounts = dict[str, dict[str, float]]

EPSILON = 1e-6
"""Tolerance in comparisons of sums: ten times 0.1 GPUs are within a share of 1."""


class Room:
    """Free amounts per node.

    An amount is negative while more is promised than is free. Such a node has no room for that resource. The amounts of
    a node are replaced and never changed, so that copies share them, and with them the counts of what fits: of a
    hundred nodes a job that starts or leaves changes one or two.
    """

    def __init__(self, nodes: Sequence[Node], amounts: Mapping[str, Mapping[str, float]]) -> None:
        """Copy the amounts.

        Args:
            nodes: nodes of the cluster; their own `free` is ignored.
            amounts: free amounts by node; a node that is missing has none.
        """
        self._nodes = {node.name: node for node in nodes}
        self.free: Amounts = {node.name: dict(amounts.get(node.name, {})) for node in nodes}
        self._counts: dict[str, dict[Hashable, tuple[int, int | None]]] = {name: {} for name in self.free}

    def copy(self) -> Room:
        """Return a copy that changes independently."""
        room = copy(self)
        room.free, room._counts = dict(self.free), dict(self._counts)
        return room

    def take(self, placement: Placement) -> None:
        """Subtract a placement; parts of it on unknown nodes are ignored."""
        self._change(placement, -1)

    def give(self, placement: Placement) -> None:
        """Add a placement; parts of it on unknown and lost nodes are ignored."""
        self._change(placement, 1)

    def _change(self, placement: Placement, sign: int) -> None:
        for name, amounts in placement.items():
            if before := self.free.get(name):
                self.free[name] = free = dict(before)
                for key, value in amounts.items():
                    free[key] = free.get(key, 0) + sign * value
                self._counts[name] = {}

    def within(self, other: Room, names: Iterable[str] | None = None) -> Room:
        """Return the room that is free in both; only some nodes are compared if they are named."""
        room = self.copy()
        for name in self.free if names is None else names:
            there = other.free[name]
            room.free[name] = {key: min(value, there.get(key, 0)) for key, value in self.free[name].items()}
            room._counts[name] = {}
        return room

    def holds(self, placement: Placement) -> bool:
        """Return whether the whole of a placement is free."""
        return all(
            self.free.get(name, {}).get(key, 0) >= value - EPSILON
            for name, amounts in placement.items()
            for key, value in amounts.items()
        )

    def place(self, request: Request) -> Placement | None:
        """Return where a request fits, all of it or nothing; None if it does not.

        The entry point goes where it costs the fewest workers, and then, as the workers do, to the fullest node that
        holds it, which leaves whole nodes for large jobs.
        """
        entry, one, count = request.parts
        counts = {name: self._fitting(name, request) for name in self.free}
        hosts = [name for name in counts if counts[name][1] is not None]
        if not hosts:
            return None
        fitting = {name: workers for name, (workers, _) in counts.items()} if count else {}
        placement: Amounts = {}
        if entry:
            beside = {name: counts[name][1] or 0 for name in hosts}
            host = min(hosts, key=lambda name: (counts[name][0] - beside[name], self._size(name)))
            placement[host], fitting[host] = dict(entry), beside[host]
        return self._add_workers(placement, fitting, one, count)

    def _fitting(self, name: str, request: Request) -> tuple[int, int | None]:
        """Return how many workers of a request fit on a node, and how many beside its entry point.

        The second number is None if the entry point does not fit, or may not run there.
        """
        known = self._counts[name]
        found = known.get(request.shape)
        if found is None:
            entry, one, count = request.parts
            node, free = self._nodes[name], self.free[name]
            workers = max(0, int(times(free, one))) if count else 0
            beside = None
            if node.alive and node.has(request.labels) and times(free, entry) >= 1:
                beside = max(0, int(times(subtract(free, entry), one))) if count else 0
            found = known[request.shape] = workers, beside
        return found

    def _size(self, name: str) -> tuple[float, float]:
        return self.free[name].get("GPU", 0), self.free[name].get("CPU", 0)

    def _add_workers(
        self, placement: Amounts, fitting: dict[str, int], one: Mapping[str, float], missing: int
    ) -> Placement | None:
        if sum(fitting.values()) < missing:
            return None
        while missing > 0:
            enough = [name for name, count in fitting.items() if count >= missing]
            name = (
                min(enough, key=lambda name: (fitting[name], self._size(name)))
                if enough
                else max(fitting, key=lambda name: fitting[name])
            )
            count = min(missing, fitting.pop(name))
            missing -= count
            there = placement.setdefault(name, {})
            for key, value in one.items():
                there[key] = there.get(key, 0) + count * value
        return placement
