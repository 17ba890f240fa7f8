"""Free capacity of the nodes that run entry points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlplatform.scheduling import capacity
from mlplatform.scheduling.capacity import Shortage
from mlplatform.scheduling.resources import Node, Request

YOUNG_SECONDS = 60.0
"""Time for which a started job is counted: an entry point imports for 20 s on two cores before it requests workers."""


class FreeCapacity:
    """Free resources of the nodes, for jobs whose entry points run on nodes with a label."""

    def __init__(self, nodes: Sequence[Node], label: Mapping[str, str]) -> None:
        """Keep the nodes.

        Args:
            nodes: nodes of the cluster, as last listed.
            label: label of the nodes that run entry points.
        """
        self._nodes = nodes
        self._label = label

    def check(self, request: Request) -> Shortage | None:
        """Return what a job has to wait for; None if it fits now.

        Raises:
            CapacityError: it can never run on these nodes.
        """
        labels = {**request.labels, **self._label}
        return capacity.check(self._nodes, request.entrypoint, request.workers, labels)
