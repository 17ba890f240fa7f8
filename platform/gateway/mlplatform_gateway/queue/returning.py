"""Requests of jobs that were asked to leave: they also wait for what they had held beyond their requests.

Otherwise they would return at once, and compete in Ray with the jobs that they have left for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mlplatform.capacity.resources import Node, Request, WorkerGroup
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.states import Outcome
from mlplatform_gateway.queue.planner.queue import Team
from mlplatform_gateway.queue.planner.room import EPSILON, Room
from mlplatform_gateway.usage.history import UsageHistory


class Returning:
    """Requests with which jobs wait that were asked to leave."""

    def __init__(self, history: UsageHistory) -> None:
        self._history = history
        self._held: dict[tuple[int, int], tuple[float, float]] = {}

    async def read(self, rows: Sequence[JobRow]) -> None:
        """Read what these jobs had held, once for each of their attempts, and forget all others.

        Raises:
            UnreachableError: the database is unavailable.
        """
        left = sorted((row.sequence, attempt.number) for row in rows if (attempt := preempted(row)))
        self._held = {key: self._held.get(key) or await self._history.most_held(*key) for key in left}

    def request(self, row: JobRow, request: Request, nodes: Sequence[Node], team: Team) -> Request:
        """Return what a job waits for: its request, and what it held beyond that if the nodes and its caps allow it."""
        attempt = preempted(row)
        held = self._held.get((row.sequence, attempt.number)) if attempt else None
        if held is None:
            return request
        larger = with_surplus(request, held)
        empty = Room(nodes, {node.name: node.total for node in nodes if node.alive})
        return request if _is_capped(larger, team) or empty.place(larger) is None else larger


def preempted(row: JobRow) -> AttemptRow | None:
    """Return the last attempt of a job that has ended, if it was asked to leave."""
    ended = [attempt for attempt in row.attempts if attempt.ended is not None]
    return ended[-1] if ended and ended[-1].outcome == Outcome.PREEMPTED else None


def with_surplus(request: Request, held: tuple[float, float]) -> Request:
    """Return a request with workers for what remains of an amount of GPUs and CPUs, rounded to what Ray can grant.

    That is a part of one GPU, or whole ones. Of declared workers, more are requested if they have GPUs.
    """
    gpus, cpus = (max(0.0, most - asked) for most, asked in zip(held, request.sums, strict=True))
    group = request.workers
    if group is not None:
        more = math.ceil(gpus / group.gpus - EPSILON) if group.gpus > EPSILON else 0
        return replace(request, workers=replace(group, count=group.count + more))
    if gpus > EPSILON:
        count = max(1, int(gpus + EPSILON))
        return replace(request, workers=WorkerGroup(count, min(1.0, cpus / count), min(1.0, gpus)))
    count = int(cpus + EPSILON)
    return replace(request, workers=WorkerGroup(count, 1.0, 0.0)) if count else request


def _is_capped(request: Request, team: Team) -> bool:
    """Return whether a request alone exceeds a cap of its team or of a person in it."""
    return any(
        most is not None and amount > most + EPSILON
        for caps in (team.caps, team.person_caps)
        for amount, most in zip(request.sums, (caps.gpus, caps.cpus), strict=True)
    )
