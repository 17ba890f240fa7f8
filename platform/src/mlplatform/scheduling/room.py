"""Room on the nodes, into which requests are placed by the packing rules of `capacity`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mlplatform.scheduling.capacity import times
from mlplatform.scheduling.queue import Placement
from mlplatform.scheduling.resources import Node, Request, subtract

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
        entry, one, count = request.parts
        hosts = [name for name in self.hosts(request) if not entry or times(self.free[name], entry) >= 1]
        if not hosts:
            return None
        fitting = {name: _pieces(free, one) for name, free in self.free.items()} if count else {}
        placement: Amounts = {}
        if entry:
            beside = {name: _beside(self.free[name], entry, one) if count else 0 for name in hosts}
            host = min(hosts, key=lambda name: (fitting.get(name, 0) - beside[name], self._size(name)))
            placement[host], fitting[host] = dict(entry), beside[host]
        return self._add_workers(placement, fitting, one, count)

    def hosts(self, request: Request) -> list[str]:
        """Return the names of the living nodes whose labels let them run the entry point of a request."""
        return [node.name for node in self._nodes if node.alive and (not request.labels or node.has(request.labels))]

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


class Fit:
    """Room that jobs leave and enter, and how often a request fits; only nodes that change are counted again."""

    def __init__(self, room: Room, request: Request) -> None:
        """Count what fits.

        Args:
            room: what is free; changed by `give` and `take`.
            request: what has to fit.
        """
        self.room = room
        self._entry, self._one, self._count = request.parts
        self._hosts = frozenset(room.hosts(request))
        self._fitting: dict[str, int] = {}
        self._costs: dict[str, int] = {}
        self._recount(room.free)

    @property
    def holds(self) -> bool:
        """Answer to whether the request fits."""
        return bool(self._costs) and sum(self._fitting.values()) - min(self._costs.values()) >= self._count

    def give(self, placement: Placement) -> None:
        """Add a placement to the room."""
        self.room.give(placement)
        self._recount(placement)

    def take(self, *placements: Placement) -> None:
        """Subtract placements from the room."""
        for placement in placements:
            self.room.take(placement)
        self._recount({name for placement in placements for name in placement})

    def _recount(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.room.free:
                continue
            free = self.room.free[name]
            fitting = self._fitting[name] = _pieces(free, self._one) if self._count else 0
            if name not in self._hosts:
                continue
            if not self._entry:
                self._costs[name] = 0
            elif times(free, self._entry) >= 1:
                self._costs[name] = fitting - _beside(free, self._entry, self._one) if self._count else 0
            else:
                self._costs.pop(name, None)


def _beside(free: Mapping[str, float], entry: Mapping[str, float], one: Mapping[str, float]) -> int:
    """Return how many workers fit on a node beside the entry point."""
    return _pieces(subtract(free, entry), one)


def _pieces(free: Mapping[str, float], one: Mapping[str, float]) -> int:
    """Return how many workers that ask for something fit on a node."""
    return max(0, int(times(free, one)))


def total(placement: Placement, nodes: Iterable[str] | None = None) -> tuple[float, float]:
    """Return the GPUs and CPUs of a placement, on some nodes or on all."""
    parts = [placement[name] for name in nodes if name in placement] if nodes is not None else placement.values()
    return sum(part.get("GPU", 0) for part in parts), sum(part.get("CPU", 0) for part in parts)


def asked(request: Request) -> tuple[float, float]:
    """Return the GPUs and CPUs of a request, workers included."""
    group = request.workers
    gpus, cpus = request.entrypoint.gpus, request.entrypoint.cpus
    return (gpus + group.count * group.gpus, cpus + group.count * group.cpus) if group else (gpus, cpus)
