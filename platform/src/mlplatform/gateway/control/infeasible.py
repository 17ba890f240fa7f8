"""What running jobs have asked Ray for that no node can give: Ray lets them wait for it without an end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from mlplatform.errors import CapacityError
from mlplatform.gateway.jobs.schema import JobRow
from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.jobs.store import RUNNING_MESSAGE, JobStore
from mlplatform.gateway.logs.store import JobLogs
from mlplatform.gateway.upstream.ray import RayHead
from mlplatform.scheduling import capacity
from mlplatform.scheduling.resources import Node, Resources, WorkerGroup

_WAITS = "The job runs, and waits for a node that can run its workers. "


class InfeasibleRequests:
    """Says of jobs, in their message and in their log, what they wait for in vain."""

    def __init__(self, store: JobStore, head: RayHead, logs: JobLogs) -> None:
        self._store = store
        self._head = head
        self._logs = logs
        self._found: dict[str, str] = {}

    async def look(self, nodes: Sequence[Node]) -> None:
        """Look once; what is found a second time in a row is said, as nodes that join are not all there at once.

        Args:
            nodes: alive, or seen lately.

        Raises:
            UnreachableError: the head or the database does not answer.
        """
        running = [job for job in await self._store.open_jobs() if job.state == State.RUNNING]
        before, self._found = self._found, await self._hopeless(running, nodes) if running else {}
        for job in running:
            reason = self._found.get(job.id)
            if reason == before.get(job.id):
                await self._say(job, reason)

    async def _hopeless(self, running: Sequence[JobRow], nodes: Sequence[Node]) -> dict[str, str]:
        """Why a request of a job has no place, by the ids of the jobs that have made such a one."""
        if not any(never(nodes, bundles) for bundles in await self._head.pending_shapes()):
            return {}
        ids = {attempt.ray_job_id: job.id for job in running if (attempt := job.open_attempt)}
        requests = [
            (ids[ray_job_id], bundles)
            for ray_job_id, bundles in await self._head.pending_requests()
            if ray_job_id in ids
        ]
        return {job_id: reason for job_id, bundles in requests if (reason := never(nodes, bundles))}

    async def _say(self, job: JobRow, reason: str | None) -> None:
        if not reason:
            if job.message.startswith(_WAITS):
                await self._store.say(job.id, RUNNING_MESSAGE, State.RUNNING)
        elif job.message != (message := _WAITS + reason):
            await self._logs.note(job.id, f"{message} To end the job: mlplatform stop {job.id}")
            await self._store.say(job.id, message, State.RUNNING)


def never(nodes: Sequence[Node], bundles: Sequence[Mapping[str, float]]) -> str | None:
    """Why nodes can never hold what is asked for at once, each bundle on one of them; None where they can."""
    for kind, count in Counter(frozenset(bundle.items()) for bundle in bundles).items():
        custom = dict(kind)
        group = WorkerGroup(count, custom.pop("CPU", 0), custom.pop("GPU", 0), custom)
        try:
            capacity.check(nodes, Resources(), group)
        except CapacityError as error:
            return str(error)
    return None
