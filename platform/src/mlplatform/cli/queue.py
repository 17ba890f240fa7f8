"""`mlplatform queue` and `mlplatform why`: which jobs wait, in which order, and why."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

import typer

from mlplatform.cli.output import print_table, span


def queue(
    as_json: Annotated[bool, typer.Option("--json", help="Print each job as one line of JSON.")] = False,
) -> None:
    """List the jobs that wait for resources in the order in which they are considered, with the reasons."""
    from mlplatform.client.connection import Connection
    from mlplatform.client.queue import read
    from mlplatform.settings.job import settings

    link = Connection(settings())
    try:
        waiting, entries = read(link)
    finally:
        link.close()
    if as_json:
        for entry in entries:
            print(json.dumps(entry))
        return
    if not entries:
        print("No job waits for resources.")
        return
    print_table(
        ["Job", "Place", "Person", "Team", "Requests", "Waits since", "Why"],
        [
            (
                entry["job"],
                str(entry["place"]),
                entry["person"],
                entry["team"],
                entry["requests"],
                span(datetime.fromisoformat(entry["arrived"])),
                " ".join(reason["text"] for reason in entry["reasons"]),
            )
            for entry in entries
        ],
    )
    if waiting > len(entries):
        print(f"{waiting - len(entries)} more wait.")


def why(job_id: Annotated[str, typer.Argument(help="Id of the job.")]) -> None:
    """Explain why a job waits: its place in the queue, and each rule that keeps it waiting, with the numbers."""
    from mlplatform.client.connection import Connection
    from mlplatform.client.jobs import Jobs
    from mlplatform.client.queue import read
    from mlplatform.settings.job import settings

    link = Connection(settings())
    try:
        waiting, entries = read(link, job_id)
    finally:
        link.close()
    if not entries:
        with Jobs(settings()) as jobs:
            job = jobs.get(job_id)
        print(f"{job_id} is {job.status}: {job.message}")
        return
    (entry,) = entries
    since = span(datetime.fromisoformat(entry["arrived"]))
    print(f"{job_id} ({entry['person']}, team {entry['team']}) requests {entry['requests']} and waits since {since}.")
    print(f"Place {entry['place']} of {waiting}.")
    for reason in entry["reasons"]:
        print(f"- {reason['text']} [{reason['rule']}]")
    if entry["latest_start"]:
        print(f"It starts by {span(datetime.fromisoformat(entry['latest_start']))}, if all jobs keep to their limits.")
