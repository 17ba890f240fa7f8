"""Who fits: the nodes' room, less what was started so lately that Ray does not count it yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlplatform import capacity
from mlplatform.capacity import Node, Wait
from mlplatform.gateway.schema import JobRow
from mlplatform.gateway.submission import group_of, resources_of

YOUNG_SECONDS = 60.0
"""An entry point imports for 20 s on two cores before it asks for its workers."""

_EPSILON = 1e-9


class Room:
    """What is free on the nodes, less and less of it as jobs are let in."""

    def __init__(self, nodes: Sequence[Node], label: Mapping[str, str]) -> None:
        """Args: label: of the nodes that run entry points."""
        self._nodes = list(nodes)
        self._label = label

    def check(self, job: JobRow) -> Wait | None:
        """What a job has to wait for.

        Raises:
            CapacityError: it can never run on these nodes.
        """
        return capacity.check(self._nodes, resources_of(job.entry), group_of(job.workers), self._labels(job))

    def take(self, job: JobRow) -> None:
        """Count a job's entry point and its workers as there, on the first nodes that have room for them."""
        entry = resources_of(job.entry).amounts()
        if entry:
            self._put(entry, self._labels(job))
        if group := group_of(job.workers):
            for _ in range(group.count):
                self._put(group.amounts(), {})

    def _labels(self, job: JobRow) -> dict[str, str]:
        return {**(job.entry.get("entrypoint_label_selector") or {}), **self._label}

    def _put(self, amounts: Mapping[str, float], labels: Mapping[str, str]) -> None:
        for index, node in enumerate(self._nodes):
            # Twenty times 0.1 CPUs are there where 2 are, though 2 - 19 * 0.1 is less than 0.1.
            fits = all(node.free.get(key, 0) + _EPSILON >= need for key, need in amounts.items())
            if node.alive and node.has(labels) and fits:
                free = {key: value - amounts.get(key, 0) for key, value in node.free.items()}
                self._nodes[index] = replace(node, free=free)
                return
