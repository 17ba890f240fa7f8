"""Room on the nodes, into which requests are placed by the packing rules of `capacity`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mlplatform.scheduling.capacity import times
from mlplatform.scheduling.queue import Placement
from mlplatform.scheduling.resources import Node, Request, WorkerGroup, subtract

Amounts = dict[str, dict[str, float]]


class Room:
    """Free amounts per node.

    An amount is negative while more is promised than is free. Such a node has no room for that resource.
    """

    def __init__(self, nodes: Sequence[Node], amounts: Mapping[str, Mapping[str, float]]) -> None:
        """Copy the amounts.

        Args:
            nodes: nodes of the cluster; their own `free` is ignored.
            amounts: free amounts by node; a node that is missing has none.
        """
        self._nodes = nodes
        self.free: Amounts = {node.name: dict(amounts.get(node.name, {})) for node in nodes}

    def copy(self) -> Room:
        """Return a copy that changes independently."""
        return Room(self._nodes, self.free)

    def take(self, placement: Placement) -> None:
        """Subtract a placement; parts of it on unknown nodes are ignored."""
        self._change(placement, -1)

    def give(self, placement: Placement) -> None:
        """Add a placement; parts of it on unknown and lost nodes are ignored."""
        self._change(placement, 1)

    def _change(self, placement: Placement, sign: int) -> None:
        for name, amounts in placement.items():
            if free := self.free.get(name):
                for key, value in amounts.items():
                    free[key] = free.get(key, 0) + sign * value

    def within(self, other: Room) -> Room:
        """Return the room that is free in both."""
        amounts = {
            name: {key: min(value, other.free[name].get(key, 0)) for key, value in free.items()}
            for name, free in self.free.items()
        }
        return Room(self._nodes, amounts)

    def place(self, request: Request) -> Placement | None:
        """Return where a request fits, all of it or nothing; None if it does not.

        The entry point goes where it costs the fewest workers, and then, as the workers do, to the fullest node that
        holds it, which leaves whole nodes for large jobs.
        """
        entry = request.entrypoint.amounts()
        group = request.workers if request.workers and request.workers.amounts() else None
        one = group.amounts() if group else {}
        hosts = [node.name for node in self._nodes if node.has(request.labels)]
        hosts = [name for name in hosts if times(self.free[name], entry) >= 1]
        if not hosts:
            return None
        costs = {name: self._cost(name, entry, one) for name in hosts}
        host = min(hosts, key=lambda name: (costs[name], self._size(name)))
        placement: Amounts = {host: dict(entry)} if entry else {}
        return self._add_workers(placement, host, entry, group) if group else placement

    def _cost(self, host: str, entry: Mapping[str, float], one: Mapping[str, float]) -> float:
        """Return how many workers fewer fit on a node with the entry point."""
        if not one or not entry:
            return 0
        return _pieces(self.free[host], one) - _pieces(subtract(self.free[host], entry), one)

    def _size(self, name: str) -> tuple[float, float]:
        return self.free[name].get("GPU", 0), self.free[name].get("CPU", 0)

    def _add_workers(
        self, placement: Amounts, host: str, entry: Mapping[str, float], group: WorkerGroup
    ) -> Placement | None:
        one, missing = group.amounts(), group.count
        fitting = {name: _pieces(free, one) for name, free in self.free.items()}
        if entry:
            fitting[host] = _pieces(subtract(self.free[host], entry), one)
        if sum(fitting.values()) < missing:
            return None
        while missing > 0:
            enough = [name for name, count in fitting.items() if count >= missing]
            name = (
                min(enough, key=lambda name: (fitting[name], self._size(name)))
                if enough
                else max(fitting, key=lambda name: fitting[name])
            )
            count = min(missing, int(fitting.pop(name)))
            missing -= count
            there = placement.setdefault(name, {})
            for key, value in one.items():
                there[key] = there.get(key, 0) + count * value
        return placement


def _pieces(free: Mapping[str, float], one: Mapping[str, float]) -> float:
    return max(0, times(free, one))


def total(placement: Placement, nodes: Iterable[str] | None = None) -> tuple[float, float]:
    """Return the GPUs and CPUs of a placement, on some nodes or on all."""
    parts = [placement[name] for name in nodes if name in placement] if nodes is not None else placement.values()
    return sum(part.get("GPU", 0) for part in parts), sum(part.get("CPU", 0) for part in parts)


def asked(request: Request) -> tuple[float, float]:
    """Return the GPUs and CPUs of a request, workers included."""
    group = request.workers
    gpus, cpus = request.entrypoint.gpus, request.entrypoint.cpus
    return (gpus + group.count * group.gpus, cpus + group.count * group.cpus) if group else (gpus, cpus)
