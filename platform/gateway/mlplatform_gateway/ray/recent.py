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
        self._jobs: dict[str, dict[int, list[list[float]]]] = {}
        """Sum and number of the measurements by job and minute, for each field of a load."""

    def add(self, loads: Mapping[str, Load], at: float) -> None:
        """Add measurements of some jobs at a time in seconds."""
        minute = int(at // 60)
        for job_id, load in loads.items():
            sums = self._jobs.setdefault(job_id, {}).setdefault(minute, [[0, 0] for _ in load])
            for field, value in zip(sums, load, strict=True):
                if value is not None:
                    field[0] += value
                    field[1] += 1
        for minutes in self._jobs.values():
            for old in [known for known in minutes if known < minute - MINUTES]:
                del minutes[old]
        self._jobs = {job_id: minutes for job_id, minutes in self._jobs.items() if minutes}

    def curve(self, job_id: str, at: float) -> dict[str, list[float | None]]:
        """Return the means of a job for the full minutes before a time, by name of the field; empty if it has none."""
        minutes, present = self._jobs.get(job_id, {}), int(at // 60)
        if not minutes:
            return {}
        shown = range(max(min(minutes), present - MINUTES), present)
        return {
            name: [_mean(*minutes[minute][place]) if minute in minutes else None for minute in shown]
            for place, name in enumerate(Load._fields)
        }


def _mean(total: float, number: float) -> float | None:
    return round(total / number, 1) if number else None
