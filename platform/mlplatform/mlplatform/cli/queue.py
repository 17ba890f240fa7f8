"""`mlplatform queue` and `mlplatform why`: which jobs wait, in which order, and why."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from mlplatform.cli.output import Json, print_list, read, span
from mlplatform.errors import JobError

if TYPE_CHECKING:
    from mlplatform.api.jobs import Attempt
    from mlplatform.api.queue import Queue, QueueEntry
    from mlplatform.client.jobs import Jobs

_OLD_SECONDS = 10.0


def queue(as_json: Json = False) -> None:
    """List the waiting jobs in the order in which they are considered, with the reasons; then those after others, and
    schedules."""
    found = _read(None)
    if not as_json and found.entries:
        _warn_if_old(found)
    columns = ["Job", "Place", "Person", "Team", "Requests", "Waits since", "Why"]
    print_list(found.entries, as_json, columns, _row, "No job waits.")
    more = found.waiting - sum(entry.place is not None for entry in found.entries)
    if not as_json and more > 0:
        print(f"{more} more wait.")


def why(job_id: Annotated[str, typer.Argument(help="Id of the job.")]) -> None:
    """Explain why a job waits, with its place and the numbers of each rule, or why a running one was asked to leave."""
    from mlplatform.client.jobs import ENDED, Jobs

    found = _read(job_id)
    if not found.entries:
        with Jobs() as jobs:
            job = jobs.get(job_id)
            leaving = None if job.status in ENDED else _leaving(jobs, job_id)
        if leaving is None:
            print(f"{job_id} is {job.status}: {job.message}")
            return
        until = span(leaving.leave_by)
        print(f"{job_id} is {job.status}, and was asked to leave: it has until {until} to save its state.")
        print(f"- {leaving.leave_why}")
        return
    _warn_if_old(found)
    (entry,) = found.entries
    since = span(entry.since)
    print(f"{job_id} ({entry.person}, team {entry.team}) requests {entry.requests} and waits since {since}.")
    if entry.place is not None:
        print(f"Place {entry.place} of {found.waiting}.")
    for reason in entry.reasons:
        print(f"- {reason.text} [{reason.rule}]")
    if entry.latest_start:
        print(f"It starts by {span(entry.latest_start)}, if all jobs keep to their limits.")


def _leaving(jobs: Jobs, job_id: str) -> Attempt | None:
    """Return the attempt of a job that was asked to leave; None if there is none."""
    try:
        attempts = jobs.attempts(job_id)
    except JobError:  # a job that was submitted to Ray directly has none
        return None
    return next((attempt for attempt in attempts if attempt.leaves), None)


def _read(job_id: str | None) -> Queue:
    """Return the jobs that wait, or one of them; none if it does not wait for resources."""
    from mlplatform.api.queue import Queue

    return read(Queue, "GET", "/platform/queue", params={"job": job_id} if job_id else {})


def _row(entry: QueueEntry) -> tuple[str, ...]:
    why = " ".join(reason.text for reason in entry.reasons)
    return (entry.job, str(entry.place or ""), entry.person, entry.team, entry.requests, span(entry.since), why)


def _warn_if_old(found: Queue) -> None:
    if found.at is not None and (datetime.now(UTC) - found.at).total_seconds() > _OLD_SECONDS:
        print(f"As of {span(found.at)}: Ray has not answered since, so no job starts.")
