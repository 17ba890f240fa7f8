"""Free capacity per node, minus jobs started too recently for Ray to count them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlplatform.scheduling import capacity
from mlplatform.scheduling.capacity import Shortage
from mlplatform.scheduling.resources import Node, Request

YOUNG_SECONDS = 60.0
"""Time for which a started job is counted: an entry point imports for 20 s on two cores before it requests workers."""

_EPSILON = 1e-9


class FreeCapacity:
    """Free resources of the nodes, reduced by each job that is started on them."""

    def __init__(self, nodes: Sequence[Node], label: Mapping[str, str]) -> None:
        """Copy the nodes, which are not changed.

        Args:
            nodes: nodes of the cluster, as last listed.
            label: label of the nodes that run entry points.
        """
        self._nodes = list(nodes)
        self._label = label

    def check(self, request: Request) -> Shortage | None:
        """Return what a job has to wait for; None if it fits now.

        Raises:
            CapacityError: it can never run on these nodes.
        """
        return capacity.check(self._nodes, request.entrypoint, request.workers, self._labels(request))

    def take(self, request: Request) -> None:
        """Reserve a job's entry point and its workers, each on the first node with enough left."""
        entrypoint = request.entrypoint.amounts()
        if entrypoint:
            self._reserve(entrypoint, self._labels(request))
        if group := request.workers:
            for _ in range(group.count):
                self._reserve(group.amounts(), {})

    def _labels(self, request: Request) -> dict[str, str]:
        return {**request.labels, **self._label}

    def _reserve(self, amounts: Mapping[str, float], labels: Mapping[str, str]) -> None:
        for index, node in enumerate(self._nodes):
            # Twenty times 0.1 CPUs fit where 2 are free, though 2 - 19 * 0.1 is less than 0.1.
            fits = all(node.free.get(key, 0) + _EPSILON >= need for key, need in amounts.items())
            if node.alive and node.has(labels) and fits:
                free = {key: value - amounts.get(key, 0) for key, value in node.free.items()}
                self._nodes[index] = replace(node, free=free)
                return
