"""The gateway's queue, as its clients read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlplatform.client.connection import Connection


def read(link: Connection, job_id: str | None = None) -> tuple[int, Sequence[Mapping[str, Any]]]:
    """Return the number of jobs that wait for resources, and the first of them in their order, at most 1,000.

    Args:
        link: connection to the gateway.
        job_id: return this job only, or nothing if it does not wait for resources.

    Raises:
        UnreachableError: nothing answers at the address.
        AccessError: the token is missing or rejected.
        JobError: the gateway is older than this route, or the address is not a gateway's.
    """
    answer = link.call("GET", "/platform/queue", params={} if job_id is None else {"job": job_id}).json()
    return answer["waiting"], answer["entries"]
