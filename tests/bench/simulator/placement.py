"""Placement of a job on nodes, as Ray places a group: packed, so that few nodes are left in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlplatform.scheduling.queue import Placement
from mlplatform.scheduling.resources import Node, Request

_EPSILON = 1e-9

_Amounts = dict[str, dict[str, float]]


def place(request: Request, nodes: Sequence[Node], free: Mapping[str, Mapping[str, float]]) -> Placement | None:
    """Return the amounts that a job takes from each node; None if it does not fit now.

    The entry point goes to the fullest node that can hold it. Workers go to the fullest node that holds them all; if
    there is none, to the emptiest nodes.
    """
    left = {node.name: dict(free[node.name]) for node in nodes}
    taken: dict[str, dict[str, float]] = {}
    entry, group = request.entrypoint.amounts(), request.workers
    if entry:
        hosts = [node.name for node in nodes if node.has(request.labels) and times_in(left[node.name], entry)]
        if not hosts:
            return None
        _take(left, taken, min(hosts, key=lambda name: _size(left, name)), entry, 1)
    if group and not _take_workers(left, taken, group.count, group.amounts()):
        return None
    return taken


def _take_workers(left: _Amounts, taken: _Amounts, missing: int, one: Mapping[str, float]) -> bool:
    fitting = {name: times_in(left[name], one) for name in sorted(left, key=lambda name: _size(left, name))}
    whole = next((name for name, count in fitting.items() if count >= missing), None)
    for name in [whole] if whole else reversed(fitting):
        count = min(missing, fitting[name])
        if count:
            _take(left, taken, name, one, count)
            missing -= count
    return missing == 0


def _take(left: _Amounts, taken: _Amounts, name: str, amounts: Mapping[str, float], times: int) -> None:
    held = taken.setdefault(name, {})
    for resource, value in amounts.items():
        left[name][resource] -= times * value
        held[resource] = held.get(resource, 0.0) + times * value


def _size(left: _Amounts, name: str) -> tuple[float, str]:
    return left[name].get("GPU", 0.0), name


def times_in(free: Mapping[str, float], amounts: Mapping[str, float]) -> int:
    """Return how many times the amounts fit."""
    return int(min(free.get(name, 0.0) / value + _EPSILON for name, value in amounts.items()))
