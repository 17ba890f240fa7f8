"""Watch over the GPUs of running jobs: those that do nothing, and those of which a job uses more than its part."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from mlplatform.gateway.control.containment import JobErrors
from mlplatform.gateway.jobs.gpu_use import GpuUseStore
from mlplatform.gateway.jobs.notices import Notices
from mlplatform.gateway.jobs.schema import AttemptRow, JobRow
from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.jobs.store import RUNNING_MESSAGE, JobStore, now
from mlplatform.gateway.logs.store import JobLogs
from mlplatform.gateway.people.store import People
from mlplatform.gateway.upstream.ray import ClusterSnapshot
from mlplatform.gateway.upstream.utilisation import UtilisationSource
from mlplatform.scheduling import gpu_jobs
from mlplatform.scheduling.utilisation import GpuUse

PAUSE_SECONDS = 15.0
"""Ray lists which process holds which GPU every 15 s."""

_STOP_SECONDS = 3.0
"""Ray's own time between SIGTERM and SIGKILL, for attempts without a grace period."""

_IDLE = "Its GPUs have done nothing since "

_EXCESS_ADVICE = "Request a larger part of a GPU, or let the program use less."


def is_reported_idle(job: JobRow) -> bool:
    """Return whether it was reported that a job's GPUs do nothing; only then may another job have them."""
    return job.message.startswith(_IDLE)


class GpuWatch:
    """Measurement of the GPUs of running jobs, with what follows from it.

    Args:
        use: source of what the nodes' agents measure.
        excess_s: time after the warning at which a job that still uses too much memory is ended.
    """

    def __init__(
        self, store: JobStore, logs: JobLogs, use: UtilisationSource, errors: JobErrors, excess_s: float
    ) -> None:
        self._store = store
        self._gpu_use = GpuUseStore(store.engine)
        self._notices = Notices(store.engine)
        self._people = People(store.engine)
        self._logs = logs
        self._use = use
        self._errors = errors
        self._excess_s = excess_s
        self._warned: dict[str, float] = {}
        self._measured: dict[str, float] = {}

    async def look(self, some_open: asyncio.Event, cluster: Callable[[], Awaitable[ClusterSnapshot]]) -> None:
        """Wait for open jobs and some seconds more, then measure once, to be repeated.

        Args:
            some_open: set while jobs are open.
            cluster: returns the nodes and jobs as Ray lists them.

        Raises:
            UnreachableError: Ray's head or the database is unavailable.
        """
        await some_open.wait()
        await asyncio.sleep(PAUSE_SECONDS)
        snapshot = await cluster()
        if not any(node.alive and node.total.get("GPU") for node in snapshot.nodes):
            return
        gpus = (await self._use.of(snapshot)).gpus
        idle_s = {team.name: team.idle_s for team in await self._people.teams()}
        running = [(job, job.open_attempt) for job in await self._store.open_jobs() if State(job.state).runs]
        names = {attempt.ray_submission_id for _, attempt in running if attempt}
        self._warned = {name: at for name, at in self._warned.items() if name in names}
        self._measured = {name: at for name, at in self._measured.items() if name in names}
        for job, attempt in running:
            if attempt and (held := gpu_jobs.held_by(job.id, gpus)):
                with self._errors.contained(job.id):
                    await self._look_at(job, attempt, held, idle_s)

    async def _look_at(
        self, job: JobRow, attempt: AttemptRow, held: Sequence[GpuUse], idle_s: Mapping[str, int]
    ) -> None:
        idle = gpu_jobs.are_idle(held)
        await self._gpu_use.measured(job.id, attempt.number, idle, self._computed(job, attempt, held))
        if attempt.leave_by is not None or job.stop_requested:
            return
        if excess := gpu_jobs.excess(job.id, held):
            await self._limit(job, attempt, excess)
        elif self._warned.pop(attempt.ray_submission_id, None):
            await self._store.set_message(job.id, RUNNING_MESSAGE, State.RUNNING)
        else:
            await self._report_idle(job, attempt if idle else None, idle_s.get(job.team or "", 0))

    def _computed(self, job: JobRow, attempt: AttemptRow, held: Sequence[GpuUse]) -> float | None:
        """Return the GPU-seconds since the last measurement; None if nothing measures them.

        A measurement counts for the time back to the last one, or for one pause if the gateway could not look.
        """
        present = time.monotonic()
        since = present - self._measured.get(attempt.ray_submission_id, present - PAUSE_SECONDS)
        self._measured[attempt.ray_submission_id] = present
        gpus = gpu_jobs.computing(job.id, held)
        return None if gpus is None else gpus * min(since, 2 * PAUSE_SECONDS)

    async def _report_idle(self, job: JobRow, idle: AttemptRow | None, idle_s: int) -> None:
        """Let a job's message and log have since when its GPUs do nothing, once its team's time is over."""
        since = idle.idle_since if idle else None
        if not since or not idle_s or (now() - since).total_seconds() < idle_s:
            if is_reported_idle(job):
                await self._store.set_message(job.id, RUNNING_MESSAGE, State.RUNNING)
            return
        message = f"{_IDLE}{since:%H:%M} UTC, so another job may have them."
        if job.message != message:
            await self._store.set_message(job.id, message, State.RUNNING)
            await self._logs.note(job.id, message)

    async def _limit(self, job: JobRow, attempt: AttemptRow, excess: str) -> None:
        """Warn a job that uses too much memory of a GPU, and end it if it still does after the time for that."""
        warned = self._warned.get(attempt.ray_submission_id)
        if warned is None:
            message = f"{excess} It is ended unless it uses less within {self._excess_s:g} s. {_EXCESS_ADVICE}"
            await self._store.set_message(job.id, message, State.RUNNING)
            await self._logs.note(job.id, message)
            self._warned[attempt.ray_submission_id] = time.monotonic()
        elif time.monotonic() - warned >= self._excess_s:
            await self._notices.end(job.id, attempt.grace_s or _STOP_SECONDS, f"{excess} {_EXCESS_ADVICE}")
