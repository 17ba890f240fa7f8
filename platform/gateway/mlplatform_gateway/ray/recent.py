"""Load of jobs over the last hour, as means per minute, in memory: a restart of the gateway begins again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MINUTES = 60


class Load(NamedTuple):
    """Measured load of a job; None where nothing measures it.

    Attributes:
        gpu: percentage of the time in which its GPUs compute, whoever uses them.
        gpu_memory: bytes in use of its GPUs.
        cpus: CPUs in use, 1 being one core.
        memory: resident memory of its processes in bytes.
    """

    gpu: float | None = None
    gpu_memory: float | None = None
    cpus: float | None = None
    memory: float | None = None


class RecentLoads:
    """The means; a job's are dropped an hour after the last of them."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[int, tuple[int, Load]]] = {}
        """By job and by minute: the number of measurements, and their mean."""

    def add(self, loads: Mapping[str, Load], at: float) -> None:
        """Add measurements of some jobs at a time in seconds."""
        minute = int(at // 60)
        for job_id, load in loads.items():
            minutes = self._jobs.setdefault(job_id, {})
            count, mean = minutes.get(minute, (0, load))
            minutes[minute] = count + 1, Load(*map(_mean, mean, load, [count + 1] * len(load)))
        for job_id, minutes in list(self._jobs.items()):
            for old in [known for known in minutes if known <= minute - MINUTES]:
                del minutes[old]
            if not minutes:
                del self._jobs[job_id]

    def curve(self, job_id: str, at: float) -> dict[str, list[float | None]]:
        """Return the means of a job up to a time by name, minute by minute; empty if it has none."""
        minutes, last = self._jobs.get(job_id, {}), int(at // 60)
        shown = range(max(min(minutes, default=last + 1), last - MINUTES + 1), last + 1)
        loads = [minutes.get(minute, (0, Load()))[1] for minute in shown]
        return {name: [_rounded(value) for value in values] for name, values in zip(Load._fields, zip(*loads))}


def _mean(before: float | None, value: float | None, count: int) -> float | None:
    """Return the mean of `count` values, from that of those before the last one."""
    return value if before is None else before if value is None else before + (value - before) / count


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
