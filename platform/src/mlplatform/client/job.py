"""A job as the gateway's Jobs API describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self


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


def _time(milliseconds: int | None) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None
