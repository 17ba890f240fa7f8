"""Pending requests of running jobs that no node can ever satisfy; Ray itself lets them wait indefinitely."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from mlplatform.capacity.resources import Node, Resources, WorkerGroup
from mlplatform.errors import CapacityError
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.store import RUNNING_MESSAGE
from mlplatform_gateway.queue.planner import feasibility

_PAUSE_SECONDS = 10.0

_WAITS = "The job runs, and waits for a node that can run its workers. "


class InfeasibleRequests:
    """Reporter of infeasible requests, in the message and the log of their job."""

    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._head = services.head
        self._logs = services.logs
        self._errors = services.errors
        self._cluster = services.cluster
        self._found: dict[str, str] = {}

    async def look(self, some_open: asyncio.Event) -> None:
        """Wait for open jobs and ten seconds more, then check once, to be repeated.

        Requests are reported that two checks in a row find, because joining nodes are not listed all at once.

        Args:
            some_open: set while jobs are open.

        Raises:
            UnreachableError: Ray's head or the database is unavailable.
        """
        await some_open.wait()
        await asyncio.sleep(_PAUSE_SECONDS)
        nodes = (await self._cluster.look()).nodes
        running = [job for job in await self._store.open_jobs() if job.state == State.RUNNING]
        before, self._found = self._found, await self._find(running, nodes) if running else {}
        for job in running:
            reason = self._found.get(job.id)
            if reason == before.get(job.id):
                with self._errors.contained(job.id):
                    await self._report(job, reason)

    async def _find(self, running: Sequence[JobRow], nodes: Sequence[Node]) -> dict[str, str]:
        """Return the reasons why requests are infeasible, by job id."""
        if not any(infeasible_reason(nodes, bundles) for bundles in await self._head.pending_shapes()):
            return {}
        ids = {attempt.ray_job_id: job.id for job in running if (attempt := job.open_attempt)}
        requests = [
            (ids[ray_job_id], bundles)
            for ray_job_id, bundles in await self._head.pending_requests()
            if ray_job_id in ids
        ]
        return {job_id: reason for job_id, bundles in requests if (reason := infeasible_reason(nodes, bundles))}

    async def _report(self, job: JobRow, reason: str | None) -> None:
        if not reason:
            if job.message.startswith(_WAITS):
                await self._store.set_message(job.id, RUNNING_MESSAGE, State.RUNNING)
        elif job.message != (message := _WAITS + reason):
            await self._logs.note(job.id, f"{message} To end the job: mlplatform stop {job.id}")
            await self._store.set_message(job.id, message, State.RUNNING)


def infeasible_reason(nodes: Sequence[Node], bundles: Sequence[Mapping[str, float]]) -> str | None:
    """Return why nodes can never hold all bundles at once, each bundle on one node; None if they can."""
    for kind, count in Counter(frozenset(bundle.items()) for bundle in bundles).items():
        custom = dict(kind)
        group = WorkerGroup(count, custom.pop("CPU", 0), custom.pop("GPU", 0), custom)
        try:
            feasibility.check(nodes, Resources(), group)
        except CapacityError as error:
            return str(error)
    return None
