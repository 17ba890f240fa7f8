"""Whether a job can ever run on the nodes that there are, and what it has to wait for.

Pure functions over what Ray's dashboard says of its nodes; `jobs` asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mlplatform.errors import CapacityError
from mlplatform.scheduling.resources import (
    LEAST_AMOUNT,
    Node,
    Resources,
    WorkerGroup,
    describe,
    format_amount,
    subtract,
    unit_of,
)

_EPSILON = 1e-9


@dataclass(frozen=True)
class Shortage:
    """The job can run, but not now; `str()` says what it waits for."""

    missing: str
    users: tuple[str, ...] = ()
    """Jobs that run now."""

    away: tuple[str, ...] = ()
    """Nodes that were lost lately and may come back."""

    def __str__(self) -> str:
        parts = [f"The job waits for {self.missing}"]
        if self.users:
            parts.append(f"in use by {', '.join(self.users)}")
        if self.away:
            parts.append(f"{', '.join(self.away)} {'is' if len(self.away) == 1 else 'are'} away")
        return "; ".join(parts) + "."


def check(
    nodes: Sequence[Node],
    entry: Resources,
    workers: WorkerGroup | None = None,
    labels: Mapping[str, str] = MappingProxyType({}),
) -> Shortage | None:
    """Refuse what the nodes can never run, and say what is missing now.

    Args:
        nodes: alive, or seen lately.
        entry: what the entry point reserves.
        workers: the group that the job's code asks for.
        labels: selector of the nodes that may run the entry point; empty means any.

    Returns:
        What has to become free first; None when there is room now.

    Raises:
        CapacityError: no node, or not all of them together, can ever give what is asked for.
    """
    hosts = [node for node in nodes if node.has(labels)]
    selector = ", ".join(f"{key}={value}" for key, value in labels.items())
    _check_amounts("The entry point", entry.amounts())
    _check_fits("The entry point", entry.amounts(), hosts, f" with label {selector}" if selector else "")
    if workers:
        _check_amounts("One worker", workers.amounts())
        _check_fits("One worker", workers.amounts(), nodes, "")
        most = _most_workers(nodes, hosts, entry.amounts(), workers.amounts())
        if most < workers.count:
            raise CapacityError(_too_many(nodes, entry.amounts(), workers, int(most)))
    return _wait(nodes, hosts, entry.amounts(), workers)


def _check_amounts(who: str, amounts: Mapping[str, float]) -> None:
    """Ray gives GPUs in fractions below 1, and whole ones above (`ray._private.ray_option_utils`)."""
    for name, value in amounts.items():
        if value < 0:
            raise CapacityError(f"{who} asks for {format_amount(name, value)}; ask for 0 or more.")
        if 0 < value < LEAST_AMOUNT:
            raise CapacityError(
                f"{who} asks for {format_amount(name, value)}, and Ray counts in steps of {LEAST_AMOUNT}; ask for more."
            )
    gpus = amounts.get("GPU", 0)
    if gpus > 1 and gpus != int(gpus):
        raise CapacityError(
            f"{who} asks for {format_amount('GPU', gpus)}, and above 1 Ray gives whole ones only; "
            f"ask for {math.floor(gpus)} or {math.ceil(gpus)}."
        )


def _check_fits(who: str, asked: Mapping[str, float], nodes: Sequence[Node], which: str) -> None:
    """One node has to give all of it."""
    if any(_times(node.total, asked) >= 1 for node in nodes):
        return
    start = f"{who} asks for {describe(asked) or 'no resources'}"
    if not nodes:
        raise CapacityError(f"{start}; Ray knows no node{which}, start a worker.")
    most = {name: max(node.total.get(name, 0) for node in nodes) for name in asked}
    short = {name: value for name, value in most.items() if value + _EPSILON < asked[name]}
    if not short:
        raise CapacityError(
            f"{start} on one node; no node{which} has all of that at once ({_shapes(nodes, asked)}); "
            "ask for what one of these has."
        )
    has = " and ".join(
        f"more than {format_amount(name, value)}" if value else f"a {unit_of(name, 1)}" for name, value in short.items()
    )
    limit = " and ".join(
        f"at most {format_amount(name, value)}" if value else f"no {unit_of(name, 1)}" for name, value in short.items()
    )
    best = [node for node in nodes if all(node.total.get(name, 0) == most[name] for name in short)]
    raise CapacityError(f"{start}; no node{which} has {has} ({_shapes(best or nodes, asked)}); ask for {limit}.")


def _too_many(nodes: Sequence[Node], entry: Mapping[str, float], workers: WorkerGroup, most: int) -> str:
    beside = f" beside {describe(entry)} for the entry point" if entry else ""
    useful = [node for node in nodes if _times(node.total, workers.amounts()) >= 1]
    advice = f"ask for at most {most}" if most > 0 else "ask for less for each or for the entry point"
    return (
        f"The job asks for {workers.count} workers with {describe(workers.amounts())} each{beside}; "
        f"all nodes together hold {most or 'none'} ({_shapes(useful, workers.amounts())}); {advice}."
    )


def _most_workers(
    nodes: Sequence[Node],
    hosts: Sequence[Node],
    entry: Mapping[str, float],
    one: Mapping[str, float],
    now: bool = False,
) -> float:
    """How many equal workers fit beside the entry point, wherever it goes; -1 when the entry point itself does not fit.

    A worker never spans nodes, so each node holds its own number of them, and only the node that takes the entry
    point holds fewer: the best over all such nodes is exact.
    """
    places = [host.available(now) for host in hosts if _times(host.available(now), entry) >= 1]
    if not places:
        return -1
    if not one:
        return math.inf
    lost = min(_times(room, one) - _times(subtract(room, entry), one) for room in places)
    return sum(_times(node.available(now), one) for node in nodes) - lost


def _wait(
    nodes: Sequence[Node], hosts: Sequence[Node], entry: Mapping[str, float], workers: WorkerGroup | None
) -> Shortage | None:
    one = workers.amounts() if workers else {}
    count = workers.count if workers else 0
    room = _most_workers(nodes, hosts, entry, one, now=True)
    if room >= count:
        return None
    away = tuple(node.name for node in nodes if not node.alive)
    if room < 0:
        return Shortage(_deficit(entry, hosts), away=away)
    return Shortage(f"room for {count - int(room)} of its {count} workers with {describe(one)} each", away=away)


def _deficit(asked: Mapping[str, float], hosts: Sequence[Node]) -> str:
    """What is missing on the node that lacks least of it."""
    able = [host for host in hosts if _times(host.total, asked) >= 1]
    lacking = [
        {
            name: value - host.available(True).get(name, 0)
            for name, value in asked.items()
            if value > host.available(True).get(name, 0)
        }
        for host in able
    ]
    return describe(min(lacking, key=lambda lack: (len(lack), sum(lack.values()))))


def _times(room: Mapping[str, float], asked: Mapping[str, float]) -> float:
    """How often `asked` fits into `room`."""
    return min((_pieces(name, room.get(name, 0), value) for name, value in asked.items()), default=math.inf)


def _pieces(name: str, there: float, each: float) -> int:
    """How many pieces of a resource there are; a part of a GPU lies on one of them, so 0.6 fits twice into 2 GPUs."""
    if name != "GPU" or each >= 1:
        return math.floor(there / each + _EPSILON)
    whole = math.floor(there + _EPSILON)
    return whole * math.floor(1 / each + _EPSILON) + math.floor((there - whole) / each + _EPSILON)


def _shapes(nodes: Sequence[Node], asked: Mapping[str, float]) -> str:
    """Nodes by what they have, `a, b: 8 CPUs and 1 GPU`: at most three kinds, the largest first."""
    kinds: dict[str, list[str]] = {}
    for node in sorted(nodes, key=lambda node: [-node.total.get(name, 0) for name in (*asked, "GPU", "CPU")]):
        shown = {name: node.total.get(name, 0) for name in dict.fromkeys(("CPU", "GPU", *asked))}
        kinds.setdefault(describe(shown), []).append(node.name)
    return "; ".join(f"{', '.join(names)}: {shape}" for shape, names in list(kinds.items())[:3])
