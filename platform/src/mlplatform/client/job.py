"""A job and its attempts, as the gateway describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from pydantic import TypeAdapter


@dataclass(frozen=True)
class Job:
    """A job as the Jobs API describes it."""

    id: str
    status: str
    entrypoint: str
    message: str
    user: str
    started: datetime | None
    ended: datetime | None
    exit_code: int | None = None
    """Exit status of the last attempt's entry point, negative for a signal; None until it has one."""

    limit_s: float | None = None
    """Time limit of an attempt in seconds; None if there is none, or the answer does not contain it."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """Read the API's `JobDetails`; times are in milliseconds since 1970."""
        metadata = answer.get("metadata") or {}
        return cls(
            id=answer["submission_id"] or answer["job_id"],
            status=answer["status"],
            entrypoint=answer["entrypoint"],
            message=answer.get("message") or "",
            user=metadata.get("user", ""),
            started=_time(answer.get("start_time")),
            ended=_time(answer.get("end_time")),
            exit_code=answer.get("driver_exit_code"),
            limit_s=answer.get("limit_s"),
        )


@dataclass(frozen=True)
class Attempt:
    """One start of a job, as the gateway records it."""

    number: int
    outcome: str | None
    """SUCCEEDED, FAILED, STOPPED, LOST or PREEMPTED; None while it runs."""

    reason: str | None
    node: str | None
    created: datetime
    ended: datetime | None
    leave_by: datetime | None = None
    """Time at which it is stopped; None if it was not asked to leave."""

    leave_why: str | None = None
    """Sentence that says who takes back its resources, and why."""

    @property
    def leaves(self) -> bool:
        """Return whether it was asked to leave and has not ended."""
        return self.leave_by is not None and self.ended is None


ATTEMPTS = TypeAdapter(list[Attempt])
"""Reader of `attempts` of `GET /platform/jobs/ID`, whose times are ISO 8601, in UTC."""


def _time(milliseconds: int | None) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None
