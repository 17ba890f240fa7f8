"""The gateway's queue, as its clients read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mlplatform.client.connection import Connection


@dataclass(frozen=True)
class Queue:
    """Jobs that wait for resources.

    Attributes:
        at: time for which this holds; it is old while Ray does not answer. None if no job waits.
        waiting: number of jobs that wait.
        entries: the first of them in their order, at most 1,000, as the gateway describes each.
    """

    at: datetime | None
    waiting: int
    entries: Sequence[Mapping[str, Any]]


def read(link: Connection, job_id: str | None = None) -> Queue:
    """Return the queue.

    Args:
        link: connection to the gateway.
        job_id: return the entry of this job only, or none if it does not wait for resources.

    Raises:
        UnreachableError: nothing answers at the address.
        AccessError: the token is missing or rejected.
        JobError: the gateway is older than this route, or the address is not a gateway's.
    """
    answer = link.call("GET", "/platform/queue", params={} if job_id is None else {"job": job_id}).json()
    at = answer["at"]
    return Queue(datetime.fromisoformat(at) if at else None, answer["waiting"], answer["entries"])
