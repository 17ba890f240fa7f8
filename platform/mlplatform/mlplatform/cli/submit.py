"""`mlplatform submit` and `again`: run a file or a folder, or what a job has run, as a job, and follow it."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlplatform.cli.output import Json, explained, print_json, print_log
from mlplatform.errors import FailedError, StoppedError

if TYPE_CHECKING:
    from mlplatform.api.jobs import Job
    from mlplatform.client.jobs import Jobs


def submit(
    path: Annotated[Path, typer.Argument(help="Python file, or folder with a job.toml; the folder is uploaded.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the entry point (after --).")] = None,
    entrypoint: Annotated[str | None, typer.Option(help="Shell command to run instead of the file.")] = None,
    cpus: Annotated[float | None, typer.Option(help="CPUs that the entry point itself reserves.")] = None,
    gpus: Annotated[float | None, typer.Option(help="GPUs that the entry point reserves; 0.5 shares one.")] = None,
    workers: Annotated[int | None, typer.Option(help="Workers that the job's own code will request.")] = None,
    worker_cpus: Annotated[float | None, typer.Option(help="CPUs per worker (default 1).")] = None,
    worker_gpus: Annotated[float | None, typer.Option(help="GPUs per worker.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for all processes of the job; repeatable.")] = None,
    max_restarts_on_failure: Annotated[
        int | None, typer.Option(help="Restarts allowed after a failure (default 0).")
    ] = None,
    max_restarts_on_loss: Annotated[
        int | None, typer.Option(help="Restarts allowed after losing a node or Ray (default 3).")
    ] = None,
    limit: Annotated[
        str | None, typer.Option(help="Time limit, as in 4h, after which it leaves for others (default: the team's).")
    ] = None,
    job_class: Annotated[
        str | None, typer.Option("--class", help="Order among your team's jobs: urgent, normal or idle.")
    ] = None,
    at_most: Annotated[
        int | None, typer.Option(min=1, help="Your jobs of this file or folder that run at the same time.")
    ] = None,
    after: Annotated[
        list[str] | None, typer.Option(help="Job that must have succeeded before this one starts; repeatable.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Submit such a job at these times, as in '0 3 * * *', until it is stopped.")
    ] = None,
    timezone: Annotated[str | None, typer.Option(help="Time zone of --schedule (default UTC).")] = None,
    wait_for_capacity: Annotated[bool, typer.Option(help="Queue the job until a node that fits it joins.")] = False,
    experiment: Annotated[str | None, typer.Option(help="MLflow experiment, if the code sets none.")] = None,
    note: Annotated[str | None, typer.Option(help="Description of the job's run.")] = None,
    pip: Annotated[list[str] | None, typer.Option(help="Package for this job only; repeatable.")] = None,
    wait: Annotated[bool, typer.Option(help="Follow the log, and exit with the job's result.")] = True,
    as_json: Json = False,
) -> None:
    """Run a Python file, or the entry point of a folder's job.toml, as a job.

    A job.toml beside the file may set the same options under the same names; options of the command line take
    precedence. A job that can never run on these nodes is rejected before anything is uploaded. With --json, the job is
    printed instead of its log: when it has ended, or with --no-wait at once.
    """
    from mlplatform.client import job_file
    from mlplatform.client.jobs import Jobs

    group = {"count": workers, "cpus": worker_cpus, "gpus": worker_gpus}
    options: dict[str, Any] = {
        "entrypoint": entrypoint,
        "cpus": cpus,
        "gpus": gpus,
        "workers": {key: value for key, value in group.items() if value is not None},
        "env": job_file.pairs(env or []),
        "max_restarts_on_failure": max_restarts_on_failure,
        "max_restarts_on_loss": max_restarts_on_loss,
        "limit": limit,
        "class": job_class,
        "at_most": at_most,
        "after": after,
        "schedule": schedule,
        "timezone": timezone,
        "wait_for_capacity": wait_for_capacity or None,
        "experiment": experiment,
        "note": note,
        "pip": pip,
    }
    job = job_file.submission(
        path, arguments or [], **{key: value for key, value in options.items() if value not in (None, {}, [])}
    )
    notes = sys.stderr if as_json else sys.stdout
    with Jobs() as client:
        job_id = job_file.submit(client, job, on_wait=partial(print, file=notes, flush=True))
        if job.file.schedule and not as_json:
            print(f"Schedule {job_id}: {client.get(job_id).message} `mlplatform stop {job_id}` ends it.")
        else:
            started(client, job_id, wait and not job.file.schedule, as_json)


def again(
    job_id: Annotated[str, typer.Argument(help="Id of the job, yours or of your team.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="In place of the job's own (after --).")] = None,
    wait: Annotated[bool, typer.Option(help="Follow the log, and exit with the job's result.")] = True,
    as_json: Json = False,
) -> None:
    """Submit a job again with other arguments: the same package, environment, resources and script or module."""
    from mlplatform.api.jobs import Submitted
    from mlplatform.cli.output import read
    from mlplatform.client.jobs import Jobs
    from mlplatform.settings.job import settings

    body, path = {"arguments": arguments or [], "user": settings().user}, f"/platform/jobs/{job_id}/again"
    new = read(Submitted, "POST", path, job_id=job_id, json=body).submission_id
    with Jobs() as client:
        started(client, new, wait, as_json)


def started(client: Jobs, job_id: str, wait: bool, as_json: bool) -> None:
    """Print the id of a new job, and follow it if that is wanted."""
    notes = sys.stderr if as_json else sys.stdout
    print(f"Submitted job {job_id}; follow it with `mlplatform logs -f {job_id}`.", file=notes, flush=True)
    if wait:
        follow(client, job_id, as_json)
    elif as_json:
        print_json([client.get(job_id)])


def follow(client: Jobs, job_id: str, as_json: bool) -> None:
    """Print a job's log, or at the end the job as JSON, and exit with its result; Ctrl-C leaves the job running."""
    try:
        with explained(client, job_id):
            if as_json:
                client.wait(job_id)
            else:
                print_log(client.follow_text(job_id))
    except KeyboardInterrupt:
        print(f"\nJob {job_id} continues; follow it with `mlplatform logs -f {job_id}`,", file=sys.stderr)
        print(f"or stop it with `mlplatform stop {job_id}`.", file=sys.stderr)
        raise SystemExit(130) from None
    report_end(client.get(job_id), as_json)


def report_end(job: Job, as_json: bool) -> None:
    """Print that a job succeeded, or any ended job as JSON.

    Raises:
        FailedError, StoppedError: it did not succeed.
    """
    if as_json:
        print_json([job])
    if job.status != "SUCCEEDED":
        kind = StoppedError if job.status == "STOPPED" else FailedError
        raise kind(f"Job {job.id} ended {job.status}: {(job.message.strip().splitlines() or ['no reason'])[-1]}")
    if not as_json:
        print(f"Job {job.id} succeeded.")
