"""Start of attempts: selection of the waiting jobs that fit now, and submission of an attempt to Ray."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from typing import Any

import anyio.to_thread

from mlplatform.errors import CapacityError
from mlplatform.gateway.control.containment import JobErrors, unless_log_unavailable
from mlplatform.gateway.control.outages import LOOK_BACK_SECONDS, Outages
from mlplatform.gateway.errors import RefusedError
from mlplatform.gateway.jobs.packages import Packages, package_names
from mlplatform.gateway.jobs.schema import AttemptRow, JobRow
from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.jobs.store import JobStore, now
from mlplatform.gateway.jobs.submission import renamed_keys, request_of
from mlplatform.gateway.logs.store import JobLogs
from mlplatform.gateway.upstream.ray import ClusterSnapshot, RayHead
from mlplatform.scheduling.free_capacity import YOUNG_SECONDS, FreeCapacity
from mlplatform.storage import fence

_PLACE_SECONDS = 120.0
"""Time for which a start holds its place; one that takes longer waits or hangs, and must not block the others."""

_log = logging.getLogger(__name__)


class Starter:
    """Start of attempts of waiting jobs.

    Args:
        starts: jobs that may start at the same time; each start takes seconds of CPU time.
        driver_labels: labels of the nodes that run entry points.
    """

    def __init__(
        self,
        starts: int,
        driver_labels: Mapping[str, str],
        store: JobStore,
        head: RayHead,
        logs: JobLogs,
        packages: Packages,
        outages: Outages,
        errors: JobErrors,
    ) -> None:
        self._starts = starts
        self._driver_labels = driver_labels
        self._store = store
        self._head = head
        self._logs = logs
        self._packages = packages
        self._outages = outages
        self._errors = errors

    async def begin(
        self,
        waiting: Sequence[JobRow],
        active: Sequence[tuple[JobRow, AttemptRow]],
        ending: Container[str],
        cluster: ClusterSnapshot,
    ) -> AsyncIterator[tuple[JobRow, AttemptRow]]:
        """Yield an attempt, stored but not yet known to Ray, of each waiting job that can start now.

        A job that cannot start gets the reason as its message.

        Args:
            waiting: jobs in the order in which they may start.
            active: jobs with an open attempt.
            ending: ids of active jobs whose attempt has ended; only their log is incomplete.
            cluster: jobs and nodes as Ray lists them.

        Raises:
            UnreachableError: the database is unavailable.
        """
        if not waiting:
            return
        free = self._free_capacity(active, cluster)
        starting = [
            job
            for job, attempt in active
            if not State(job.state).runs and job.id not in ending and _age(attempt) < _PLACE_SECONDS
        ]
        places = self._starts - len(starting)
        if any(map(_lost_lately, waiting)):
            await self._outages.probe()
        for job in waiting:
            attempt = None
            with self._errors.contained(job.id):
                attempt = await self._begin(job, free) if places > 0 and job.not_before <= now() else None
            if attempt is not None:
                places -= 1
                yield job, attempt

    async def hand_over(self, job: JobRow, attempt: AttemptRow) -> None:
        """Submit an attempt to Ray; may be repeated, because Ray accepts a submission id once.

        Raises:
            RefusedError, PackageError: Ray rejects the job, or its package is missing.
            UnreachableError: Ray's head, the storage or the database is unavailable.
        """
        if attempt.number > 1:
            await anyio.to_thread.run_sync(fence.allow, job.id, attempt.number)
        for name in package_names(job.runtime_env):
            await self._upload_package(name)
        await self._head.submit(self._request(job, attempt))
        if await self._store.accepted(job.id, attempt.number) and attempt.number == 1:
            # Ray's own clients show a job's log, but nothing that we add to the response to a submission.
            for notice in renamed_keys(job.job_metadata):
                _log.warning("Job %s: %s", job.id, notice)
                await unless_log_unavailable(self._logs.note(job.id, notice))

    def _free_capacity(self, active: Sequence[tuple[JobRow, AttemptRow]], cluster: ClusterSnapshot) -> FreeCapacity:
        """Free capacity of the nodes, less the jobs that were started too recently for Ray to count them."""
        free = FreeCapacity(cluster.nodes, self._driver_labels)
        for job, attempt in active:
            if _age(attempt) < YOUNG_SECONDS:
                with self._errors.contained(job.id):
                    free.take(request_of(job))
        return free

    async def _begin(self, job: JobRow, free: FreeCapacity) -> AttemptRow | None:
        """Store an attempt of a job that fits; otherwise set the job's message to what it waits for."""
        if obstacle := self._outage(job) or _shortage(free, job):
            if job.message != obstacle:
                await self._store.set_message(job.id, obstacle, State(job.state))
            return None
        attempt = await self._store.begin_attempt(job.id)
        if attempt is not None:
            free.take(request_of(job))
        return attempt

    def _outage(self, job: JobRow) -> str | None:
        """Return why a lost job waits while a service is unavailable: started now, it would be lost again."""
        unavailable = " and ".join(self._outages.now()) if _lost_lately(job) else ""
        return f"The job waits for {unavailable} before it is started again." if unavailable else None

    async def _upload_package(self, name: str) -> None:
        if await self._head.has_package(name):
            return
        if not await self._packages.exists(name):
            raise RefusedError(f"Package gcs://{name} of the job does not exist; submit the job again.")
        size, content = await self._packages.size_and_stream(name)
        await self._head.put_package(name, size, content)

    def _request(self, job: JobRow, attempt: AttemptRow) -> dict[str, Any]:
        """Body of the submission to Ray's Jobs API."""
        own = {"MLPLATFORM_JOB_ID": job.id, "MLPLATFORM_ATTEMPT": str(attempt.number), "RAY_LOG_TO_DRIVER": "0"}
        variables = {**(job.runtime_env.get("env_vars") or {}), **own}
        selector = {**(job.entrypoint_request.get("entrypoint_label_selector") or {}), **self._driver_labels}
        return {
            **{key: value for key, value in job.entrypoint_request.items() if value is not None},
            "entrypoint": job.entrypoint,
            "submission_id": attempt.ray_submission_id,
            "runtime_env": {**job.runtime_env, "env_vars": variables},
            "metadata": job.job_metadata,
            "entrypoint_label_selector": selector,
        }


def _age(attempt: AttemptRow) -> float:
    return (now() - attempt.created).total_seconds()


def _lost_lately(job: JobRow) -> bool:
    """Return whether a waiting job was lost, and its restart has been due for two minutes at most."""
    return bool(job.losses) and (now() - job.not_before).total_seconds() <= LOOK_BACK_SECONDS


def _shortage(free: FreeCapacity, job: JobRow) -> str | None:
    """Return a sentence on the resources that a job waits for; None if it can start."""
    try:
        shortage = free.check(request_of(job))
    except CapacityError as error:
        return f"The job waits for a node that can run it. {error}"
    return str(shortage) if shortage else None
