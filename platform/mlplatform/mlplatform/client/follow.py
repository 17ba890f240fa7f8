"""A job's log as the gateway streams it, and the reports in it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx

from mlplatform.client import connection
from mlplatform.client.connection import Connection
from mlplatform.contract import OMITTED, REPORT
from mlplatform.errors import UnreachableError

ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
"""States that a job does not leave."""

_REPORT = re.compile(rf"{REPORT} (\{{.*\}})")

_STREAM_TIMEOUT = httpx.Timeout(None, connect=5.0)


def follow(link: Connection, job_id: str) -> Iterator[str]:
    """Yield a job's log line by line until the job ends: the stored log, each line once, even if the gateway crashes.

    Raises:
        UnreachableError: the gateway has not answered for three minutes.
        JobError: there is no such job.
    """
    rest = ""
    for text in follow_text(link, job_id, unfinished=False):
        *whole, rest = (rest + text).split("\n")
        yield from map(last_state, whole)
    if last := last_state(rest):
        yield last


def follow_text(link: Connection, job_id: str, *, unfinished: bool = True) -> Iterator[str]:
    """Yield a job's log as it is printed until the job ends, even if the gateway crashes.

    The gateway streams a line after it has stored it, so the number of lines read is a position that outlives it. Only
    while its object store rejects lines, it streams them unstored: a crash just then may repeat some and skip others.

    Args:
        unfinished: yield unfinished lines, too. They grow, or begin again after a carriage return.

    Raises:
        UnreachableError: the gateway has not answered for three minutes.
        JobError: there is no such job.
    """
    link.details_patiently(job_id, known=False)
    path, seen, rest, read_at = f"/platform/jobs/{job_id}/log", 0, "", time.monotonic()
    while True:
        ended = link.details_patiently(job_id).status in ENDED
        parameters, read = {"follow": 1, "unfinished": int(unfinished), "skip_lines": seen}, False
        if rest:
            rest = ""
            yield "\r"
        with suppress(httpx.TransportError):
            with link.http.stream("GET", path, params=parameters, timeout=_STREAM_TIMEOUT) as answer:
                read = answer.is_success
                # An error message of the gateway is not a line of the job's log.
                for text in answer.iter_text() if read else ():
                    yield text
                    *whole, rest = (rest + text).split("\n")
                    seen, read_at = seen + sum(map(_count, whole)), time.monotonic()
            if ended and read:
                return
        if ended and time.monotonic() - read_at > connection.PATIENCE_SECONDS:
            raise UnreachableError(f"The log of job {job_id} cannot be read to its end; try again later.")
        time.sleep(0 if read and not ended else connection.POLL_SECONDS)


def last_state(line: str) -> str:
    """Return what a terminal shows of a line that was drawn again after carriage returns."""
    return line.rpartition("\r")[2]


def report_in(line: str) -> dict[str, Any] | None:
    """Return the metrics that a line of a job's log reports (see `training.reports`); None for other lines."""
    found = _REPORT.search(line)
    if found is None:
        return None
    try:
        report: dict[str, Any] = json.loads(found[1])
    except json.JSONDecodeError:
        return None
    return report


def _count(line: str) -> int:
    """Return how many lines of the log a line stands for."""
    omitted = OMITTED.fullmatch(last_state(line))
    return int(omitted[1]) if omitted else 1
