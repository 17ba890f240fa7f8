"""Warm and cold starts of a job's processes, as the gateway counts them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Start:
    """A number of processes of an attempt that started in the same way."""

    role: str
    """`driver` or `worker`; drivers are the Python programs of the entry point, workers all other processes of Ray."""

    reason: str | None
    """Why they started cold; None if they started warm."""

    count: int

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """Read one of `starts` of an attempt in `GET /platform/jobs/ID`."""
        return cls(answer["role"], answer["reason"], answer["count"])


def describe(starts: Sequence[Start]) -> str:
    """Return one line such as `driver warm, 7 workers warm, 1 cold (<reason>)`; empty without starts."""
    roles = [[start for start in starts if start.role == role] for role in ("driver", "worker")]
    return ", ".join(part for group in roles for part in _parts(group))


def _parts(starts: Sequence[Start]) -> Iterable[str]:
    # Warm ones first, then the most frequent reasons.
    for index, start in enumerate(sorted(starts, key=lambda start: (start.reason is not None, -start.count))):
        what = str(start.count) if index else _processes(start)
        yield f"{what} warm" if start.reason is None else f"{what} cold ({start.reason})"


def _processes(start: Start) -> str:
    if start.count > 1:
        return f"{start.count} {start.role}s"
    return "driver" if start.role == "driver" else "1 worker"
