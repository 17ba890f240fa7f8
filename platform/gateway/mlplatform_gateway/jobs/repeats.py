"""Jobs that repeat another: at the times of a schedule, or with other arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from mlplatform.client.request import new_id
from mlplatform.errors import JobError
from mlplatform_gateway.jobs.cron import next_after, on_clock
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import State

_KEPT = (
    *("user", "person", "team", "token", "entrypoint", "runtime_env", "entrypoint_request", "workers"),
    *("wait_for_capacity", "max_restarts_on_loss", "max_restarts_on_failure", "limit_s", "job_class"),
    *("group_name", "at_most"),
)

_NOT_REPEATED = re.compile(r"mlplatform\..*|entrypoint")
"""Metadata about when a job starts, and of its command, which each attempt gets from the job."""

_TIME_AND_LETTERS = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{4}$")
"""End of an id that `new_id` has made."""

_BEGIN = re.compile(r".*?(?:\.(?:py|sh)|\s-m\s+(?!torch\.distributed\.|accelerate\.)[\w.]+)(?=\s|$)", re.S)
"""Begin of a command up to its first script or module, which is not the launcher of one: arguments follow."""


def repetition(job: JobRow, **other: Any) -> JobRow:
    """Return a new job like another, with other values of some columns; it waits, whatever the other one does."""
    arrived = datetime.now(UTC)
    kept = {column: getattr(job, column) for column in _KEPT}
    metadata = {key: value for key, value in job.job_metadata.items() if not _NOT_REPEATED.fullmatch(key)}
    # Else it would be for the team that its owner joined first.
    of_team = {"team": job.team} if job.team else {}
    return JobRow(
        **{**kept, **other},
        id=new_id(_TIME_AND_LETTERS.sub("", job.id)),
        origin=job.id,
        job_metadata={**metadata, **of_team},
        state=State.WAITING,
        message="Job has not started yet.",
        created=arrived,
        not_before=arrived,
        attempts=[],
    )


def with_arguments(command: str, arguments: Sequence[str]) -> str:
    """Return a command with other arguments of its script or module; without any, as it is.

    Raises:
        JobError: it runs neither, or more follows than arguments.
    """
    if not arguments:
        return command
    begin = _BEGIN.match(command)
    in_quotes = begin and any(begin[0].count(quote) % 2 for quote in "'\"")
    if begin is None or in_quotes or re.search(r"[|&;<>()`\n]", command[begin.end() :]):
        raise JobError(
            f"The arguments in {command[:200]!r} cannot be replaced, because it is not one command with a Python or "
            "shell script, or `-m` and a module; submit it again as a new job."
        )
    return f"{begin[0]} {shlex.join(arguments)}"


def plan_next(job: JobRow, moment: datetime, note: str = "") -> None:
    """Let a schedule submit its next job at its first time after a moment; `note` says more in its message.

    Raises:
        JobError: the schedule is invalid.
    """
    expression, zone = job.schedule or "", job.timezone or ""
    job.state, job.due = State.SCHEDULED, next_after(expression, zone, moment)
    job.message = f"The next job is submitted at {on_clock(job.due, zone)}.{note}"
