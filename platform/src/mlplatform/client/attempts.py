"""Attempts of a job, as the gateway records them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self


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

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """Read one of `attempts` of `GET /platform/jobs/ID`; times are ISO 8601, in UTC."""
        leave_by = answer.get("leave_by")
        return cls(
            number=answer["number"],
            outcome=answer["outcome"],
            reason=answer["reason"],
            node=answer["node"],
            created=datetime.fromisoformat(answer["created"]),
            ended=datetime.fromisoformat(answer["ended"]) if answer["ended"] else None,
            leave_by=datetime.fromisoformat(leave_by) if leave_by else None,
            leave_why=answer.get("leave_why"),
        )
