"""Feasibility check of a job on the current nodes, and the resources that it has to wait for.

Pure functions over the listings of Ray's dashboard.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mlplatform.capacity.resources import (
    LEAST_AMOUNT,
    Node,
    Resources,
    Shortage,
    WorkerGroup,
    describe,
    format_amount,
    subtract,
    unit_of,
)
from mlplatform.errors import CapacityError

_EPSILON = 1e-9


def check(
    nodes: Sequence[Node],
    entry: Resources,
    workers: WorkerGroup | None = None,
    labels: Mapping[str, str] = MappingProxyType({}),
) -> Shortage | None:
    """Reject a job that the nodes can never run, and return the current shortage.

    Args:
        nodes: alive, or recently seen.
        entry: resources that the entry point reserves.
        workers: group that the job's code will request.
        labels: selector of the nodes that may run the entry point; empty means any.

    Returns:
        The resources that have to become free first; None if the job fits now.

    Raises:
        CapacityError: no node, or not all nodes together, can ever provide the requested resources.
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
    return _shortage(nodes, hosts, entry.amounts(), workers)


def _check_amounts(who: str, amounts: Mapping[str, float]) -> None:
    """Reject amounts that Ray does not support: fractions of a GPU only below 1, whole GPUs above.

    Source: `ray._private.ray_option_utils`.
    """
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
    """Reject a request that no single node can hold."""
    if any(times(node.total, asked) >= 1 for node in nodes):
        return
    start = f"{who} asks for {describe(asked) or 'no resources'}"
    if not nodes:
        raise CapacityError(f"{start}, but Ray has no node{which}; start a worker.")
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
    useful = [node for node in nodes if times(node.total, workers.amounts()) >= 1]
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
    """Return how many equal workers fit beside the entry point, on its best node; -1 if the entry point does not fit.

    A worker never spans nodes, so each node holds its own number of workers, and only the node of the entry point
    holds fewer: the maximum over all such nodes is exact.
    """
    places = [host.available(now) for host in hosts if times(host.available(now), entry) >= 1]
    if not places:
        return -1
    if not one:
        return math.inf
    lost = min(times(free, one) - times(subtract(free, entry), one) for free in places)
    return sum(times(node.available(now), one) for node in nodes) - lost


def _shortage(
    nodes: Sequence[Node], hosts: Sequence[Node], entry: Mapping[str, float], workers: WorkerGroup | None
) -> Shortage | None:
    one = workers.amounts() if workers else {}
    count = workers.count if workers else 0
    fitting = _most_workers(nodes, hosts, entry, one, now=True)
    if fitting >= count:
        return None
    unavailable = tuple(node.name for node in nodes if not node.alive)
    if fitting < 0:
        return Shortage(_deficit(entry, hosts), unavailable=unavailable)
    missing = f"room for {count - int(fitting)} of its {count} workers with {describe(one)} each"
    return Shortage(missing, unavailable=unavailable)


def _deficit(asked: Mapping[str, float], hosts: Sequence[Node]) -> str:
    """Describe the missing resources on the node that lacks the least."""
    able = [host for host in hosts if times(host.total, asked) >= 1]
    lacking = [
        {
            name: value - host.available(True).get(name, 0)
            for name, value in asked.items()
            if value > host.available(True).get(name, 0)
        }
        for host in able
    ]
    return describe(min(lacking, key=lambda lack: (len(lack), sum(lack.values()))))


def times(free: Mapping[str, float], asked: Mapping[str, float]) -> float:
    """Return how many times `asked` fits into `free`."""
    fewest = math.inf
    for name, value in asked.items():
        count = _pieces(name, free.get(name, 0), value)
        if count < fewest:
            fewest = count
    return fewest


def _pieces(name: str, free: float, each: float) -> int:
    """Return how many pieces of a resource fit; a fraction is of a single GPU, so 0.6 fits twice into 2 GPUs."""
    if name != "GPU" or each >= 1:
        return math.floor(free / each + _EPSILON)
    whole = math.floor(free + _EPSILON)
    return whole * math.floor(1 / each + _EPSILON) + math.floor((free - whole) / each + _EPSILON)


def _shapes(nodes: Sequence[Node], asked: Mapping[str, float]) -> str:
    """Group nodes by their resources, as `a, b: 8 CPUs and 1 GPU`: at most three kinds, the largest first."""
    kinds: dict[str, list[str]] = {}
    for node in sorted(nodes, key=lambda node: [-node.total.get(name, 0) for name in (*asked, "GPU", "CPU")]):
        shown = {name: node.total.get(name, 0) for name in dict.fromkeys(("CPU", "GPU", *asked))}
        kinds.setdefault(describe(shown), []).append(node.name)
    return "; ".join(f"{', '.join(names)}: {shape}" for shape, names in list(kinds.items())[:3])
