"""Watch over the GPUs of running jobs: those that do nothing, and those of which a job uses more than its part."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mlplatform_gateway.jobs.decisions import Decisions
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.store import RUNNING_MESSAGE, JobStore, now
from mlplatform_gateway.logs.store import JobLogs
from mlplatform_gateway.ray.utilisation import GpuUse

_STOP_SECONDS = 3.0
"""Ray's own time between SIGTERM and SIGKILL, for attempts without a grace period."""

_IDLE_PERCENT = 5
"""A GPU that computes for a smaller part of a second does nothing. Over half an hour that is measured 120 times, and a
job that computes in bursts for a tenth of the time is then missed with a probability of 0.9^120, or 1 in 300,000."""

_MEMORY_TOLERANCE = 1.02
"""A process needs some memory beyond the limit that its framework keeps."""

_IDLE = "Its GPUs have done nothing since "
_EXCESS_ADVICE = "Request a larger part of a GPU, or let the program use less."


def is_reported_idle(job: JobRow) -> bool:
    """Return whether it was reported that a job's GPUs do nothing; only then may another job have them."""
    return job.message.startswith(_IDLE)


class GpuWatch:
    """Reports and limits that follow from the measured use of GPUs by running jobs.

    Args:
        excess_s: time after the warning at which a job that still uses too much memory is ended.
    """

    def __init__(self, store: JobStore, logs: JobLogs, excess_s: float) -> None:
        self._store = store
        self._decisions = Decisions(store.engine)
        self._logs = logs
        self._excess_s = excess_s
        self._warned: dict[str, float] = {}
        """Times by the attempt's id at Ray; few attempts are warned."""

    async def look_at(self, job: JobRow, attempt: AttemptRow, held: Sequence[GpuUse], idle_s: float) -> None:
        """Report a running job whose GPUs do nothing, and limit one that uses too much of its memory.

        Args:
            held: the GPUs of which it holds at least a part.
            idle_s: time for which its team lets GPUs do nothing; 0 for any time.

        Raises:
            UnreachableError: the database is unavailable.
        """
        idle = are_idle(held)
        if idle is (attempt.idle_since is None):
            await self._decisions.idle(job.id, attempt.number, idle)
        if attempt.leave_by is not None or job.stop_requested:
            return
        if excess := memory_excess(job.id, held):
            await self._limit(job, attempt, excess)
        elif self._warned.pop(attempt.ray_submission_id, None):
            await self._store.set_message(job.id, RUNNING_MESSAGE, State.RUNNING)
        else:
            await self._report_idle(job, attempt if idle else None, idle_s)

    async def _report_idle(self, job: JobRow, idle: AttemptRow | None, idle_s: float) -> None:
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
            await self._decisions.end(job.id, attempt.grace_s or _STOP_SECONDS, f"{excess} {_EXCESS_ADVICE}")


def held_by(job_id: str, gpus: Sequence[GpuUse]) -> list[GpuUse]:
    """Return the GPUs of which a job holds at least a part."""
    return [gpu for gpu in gpus if gpu.holders.get(job_id)]


def are_idle(gpus: Sequence[GpuUse]) -> bool:
    """Return whether all GPUs of a job are measured, and none computes."""
    return bool(gpus) and all(gpu.percent is not None and gpu.percent < _IDLE_PERCENT for gpu in gpus)


def computing_for(job_id: str, gpus: Sequence[GpuUse]) -> float | None:
    """Return how many GPUs compute for a job, as in 0.5 for one of two halves; None if nothing measures them.

    What a shared GPU computes counts for its holders in proportion to their parts.
    """
    if not gpus or any(gpu.percent is None for gpu in gpus):
        return None
    return sum((gpu.percent or 0) / 100 * gpu.holders[job_id] / sum(gpu.holders.values()) for gpu in gpus)


def memory_excess(job_id: str, gpus: Sequence[GpuUse]) -> str | None:
    """Return a sentence about GPU memory that a job uses beyond its part of a GPU; None if it does not."""
    for gpu in gpus:
        part, used, total = gpu.holders[job_id], gpu.memory_of.get(job_id), gpu.memory_total
        if part >= 1 or used is None or total is None or used <= part * total * _MEMORY_TOLERANCE:
            continue
        allowed = f"{part * total / 2**30:.1f} GiB of the {part:g} GPUs that it requests"
        return f"It uses {used / 2**30:.1f} GiB of GPU {gpu.index} on {gpu.node}, more than the {allowed}."
    return None
