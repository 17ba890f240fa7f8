"""`mlplatform queue` and `mlplatform why`: which jobs wait, in which order, and why."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from mlplatform.cli.output import Json, print_json, print_list, read, span
from mlplatform.errors import JobError

if TYPE_CHECKING:
    from mlplatform.api.jobs import Attempt
    from mlplatform.api.queue import Queue, QueueEntry, Why
    from mlplatform.client.jobs import Jobs

_OLD_SECONDS = 10.0


def queue(as_json: Json = False) -> None:
    """List the waiting jobs in the order in which they are considered, with the reasons; then those after others, and
    schedules."""
    found = read_queue()
    if not as_json and found.entries:
        _warn_if_old(found)
    columns = ["Job", "Place", "Person", "Team", "Requests", "Waits since", "Why"]
    print_list(found.entries, as_json, columns, _row, "No job waits.")
    more = found.waiting - sum(entry.place is not None for entry in found.entries)
    if not as_json and more > 0:
        print(f"{more} more wait.")


def why(job_id: Annotated[str, typer.Argument(help="Id of the job.")], as_json: Json = False) -> None:
    """Explain why a job waits, with its place and the numbers of each rule, or why a running one was asked to leave."""
    found = explain(job_id)
    if as_json:
        return print_json([found])
    if found.leaving:
        until = span(found.leaving.leave_by)
        print(f"{job_id} is {found.status}, and was asked to leave: it has until {until} to save its state.")
        print(f"- {found.message}")
        return
    if not (entry := found.entry):
        print(f"{job_id} is {found.status}: {found.message}")
        return
    _warn_if_old(found)
    since = span(entry.since)
    print(f"{job_id} ({entry.person}, team {entry.team}) requests {entry.requests} and waits since {since}.")
    if entry.place is not None:
        print(f"Place {entry.place} of {found.waiting}.")
    for reason in entry.reasons:
        print(f"- {reason.text} [{reason.rule}]")
    if entry.latest_start:
        print(f"It starts by {span(entry.latest_start)}, if all jobs keep to their limits.")


def explain(job_id: str) -> Why:
    """Return why a job waits, or was asked to leave, or the message of its state.

    Raises:
        JobError: there is no such job.
    """
    from mlplatform.api.queue import Why

    found = read_queue(job_id)
    entry = next(iter(found.entries), None)
    status, message, leaving = ("PENDING", _reasons(entry), None) if entry else _state(job_id)
    return Why(
        job=job_id, status=status, message=message, at=found.at, waiting=found.waiting, entry=entry, leaving=leaving
    )


def _state(job_id: str) -> tuple[str, str, Attempt | None]:
    """Return status and message of a job that does not wait for resources, and its attempt that was asked to leave."""
    from mlplatform.client.jobs import ENDED, Jobs

    with Jobs() as jobs:
        job = jobs.get(job_id)
        leaving = None if job.status in ENDED else _leaving(jobs, job_id)
    return job.status, (leaving.leave_why if leaving else None) or job.message, leaving


def _leaving(jobs: Jobs, job_id: str) -> Attempt | None:
    """Return the attempt of a job that was asked to leave; None if there is none."""
    try:
        attempts = jobs.attempts(job_id)
    except JobError:  # a job that was submitted to Ray directly has none
        return None
    return next((attempt for attempt in attempts if attempt.leaves), None)


def read_queue(job_id: str | None = None) -> Queue:
    """Return the jobs that wait, or one of them; none if it does not wait for resources."""
    from mlplatform.api.queue import Queue

    return read(Queue, "GET", "/platform/queue", params={"job": job_id} if job_id else {})


def _row(entry: QueueEntry) -> tuple[str, ...]:
    place = str(entry.place or "")
    return (entry.job, place, entry.person, entry.team, entry.requests, span(entry.since), _reasons(entry))


def _reasons(entry: QueueEntry) -> str:
    return " ".join(reason.text for reason in entry.reasons)


def _warn_if_old(found: Queue | Why) -> None:
    if found.at is not None and (datetime.now(UTC) - found.at).total_seconds() > _OLD_SECONDS:
        print(f"As of {span(found.at)}: Ray has not answered since, so no job starts.")
