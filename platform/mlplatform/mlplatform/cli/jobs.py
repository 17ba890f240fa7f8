"""`mlplatform jobs ...` lists, shows and deletes jobs; `mlplatform logs|wait|stop|resume` act on one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from mlplatform.cli.output import Json, print_json, print_list, print_log, print_result, seconds_in, span
from mlplatform.cli.submit import report_end
from mlplatform.errors import PlatformError

if TYPE_CHECKING:
    from mlplatform.api.jobs import Job
    from mlplatform.storage.checkpoints import KeptCheckpoint

LATEST = 20
"""Jobs that are listed without --all: a table of 20,000 took 10 s to print."""


class _JobsOrId(TyperGroup):
    """Command group that reads `jobs ID` as `jobs show ID`; `jobs show list` shows a job named `list`."""

    # Any, because typer has a copy of click of its own, under a private name.
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["show", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=_JobsOrId, help="Jobs: list, show, delete. `jobs ID` shows one.")

JobId = Annotated[str, typer.Argument(help="Id of the job, as `submit` and `jobs` print it.")]
All = Annotated[bool, typer.Option("--all", help=f"All jobs instead of the latest {LATEST}.")]
State = Annotated[str | None, typer.Option(help="Only jobs in this state, such as RUNNING.")]
User = Annotated[str | None, typer.Option(help="Only jobs of this user.")]


@app.callback(invoke_without_command=True)
def jobs(
    context: typer.Context, all_: All = False, state: State = None, user: User = None, as_json: Json = False
) -> None:
    """Jobs: list, show, delete. `jobs ID` shows one."""
    if context.invoked_subcommand is None:
        list_jobs(all_, state, user, as_json)


@app.command("list")
def list_jobs(all_: All = False, state: State = None, user: User = None, as_json: Json = False) -> None:
    """List the latest jobs, newest first."""
    from mlplatform.client.jobs import Jobs

    with Jobs() as client:
        found = client.list(state=state, user=user)
    shown = found if all_ else found[:LATEST]
    print_list(shown, as_json, ["Job", "Status", "User", "Started", "Command"], _row)
    if len(shown) < len(found):
        more = f"The latest {len(shown)} of {len(found)} jobs; --all lists every one."
        print(more, file=sys.stderr if as_json else sys.stdout)


@app.command()
def show(job_id: JobId, as_json: Json = False) -> None:
    """Show one job: its attempts, and without --json its run and its checkpoints."""
    from mlplatform.client.jobs import Jobs
    from mlplatform.text.durations import in_words

    with Jobs() as client:
        job = client.with_attempts(job_id)
    if as_json:
        return print_json([job])
    facts = [
        ("Status", job.status),
        ("User", job.user),
        ("Command", job.entrypoint),
        ("Time", span(job.started, job.ended)),
        ("After", ", ".join(job.links.after)),
        ("Repeats", job.links.origin),
        ("Due", f"{span(job.links.due)}{', submitted late' if job.links.late else ''}"),
        ("Limit", "" if job.limit_s is None else in_words(job.limit_s)),
        ("Message", (job.message.strip().splitlines() or [""])[-1]),
    ]
    for attempt in job.attempts:
        node = attempt.node and f"on {attempt.node}"
        parts = (attempt.outcome or "running", node, span(attempt.created, attempt.ended), attempt.reason)
        facts.append((f"Attempt {attempt.number}", ", ".join(part for part in parts if part)))
        if attempt.leaves:
            facts.append(("", f"asked to leave by {span(attempt.leave_by)}: {attempt.leave_why}"))
    facts.extend(_results(job_id).items())
    width = max(len(name) for name, _ in facts)
    continuation = f"\n{'':{width}}  "
    print(f"{'Job':{width}}  {job_id}")
    for name, value in facts:
        if value:
            # A value with several lines must not look like other facts.
            print(f"{name:{width}}  {continuation.join(value.splitlines())}")


def logs(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the job ends.")] = False,
) -> None:
    """Print a job's log."""
    from mlplatform.client.jobs import Jobs

    with Jobs() as client:
        if follow:
            print_log(client.follow_text(job_id))
        elif text := client.logs(job_id):
            print(text.removesuffix("\n"))


def wait(
    job_id: JobId,
    timeout: Annotated[float | None, typer.Option(help="Limit in seconds (default: none).")] = None,
    as_json: Json = False,
) -> None:
    """Wait until a job has ended; exit 0 if it succeeded, 3 if it failed, 4 if it was stopped."""
    from mlplatform.client.jobs import Jobs

    with Jobs() as client:
        report_end(client.wait(job_id, timeout), as_json)


def stop(job_id: JobId, as_json: Json = False) -> None:
    """Stop a job; checkpoints and runs stay, so that `resume` can continue it."""
    from mlplatform.api.jobs import Stopped
    from mlplatform.client.jobs import Jobs

    with Jobs() as client:
        stopped = client.stop(job_id)
    sentence = f"Job {job_id} is stopping." if stopped else f"Job {job_id} had already ended."
    print_result(Stopped(stopped=stopped), as_json, sentence)


def resume(
    job_id: JobId,
    limit: Annotated[str | None, typer.Option(help="New time limit, as in 8h (default: the former one).")] = None,
    as_json: Json = False,
) -> None:
    """Continue a job that was stopped or has failed: the same job and run, from its last checkpoint if it has one."""
    from mlplatform.client.jobs import Jobs

    limit_s = None if limit is None else seconds_in(limit, "--limit")
    with Jobs() as client:
        message = client.resume(job_id, limit_s)
    print_result({"submission_id": job_id, "message": message}, as_json, message)


@app.command()
def delete(job_id: JobId) -> None:
    """Delete an ended job and its log; its checkpoints and its run stay."""
    from mlplatform.client.jobs import Jobs

    with Jobs() as client:
        client.delete(job_id)
    print(f"Job {job_id} is deleted.")


def _row(job: Job) -> tuple[str, ...]:
    return job.id, job.status, job.user, span(job.started), job.entrypoint


def _results(job_id: str) -> dict[str, str]:
    """Return a job's run and checkpoints, or the reason why they cannot be shown here."""
    from mlplatform.storage.checkpoints import training_runs

    facts = {}
    try:
        facts["Run"] = _address_of_run(job_id)
        for run in training_runs(job_id):
            facts[f"Latest of {run.name}"] = _kept(run.latest, "epoch" if "epoch" in run.latest.metrics else "step")
            if run.best:
                facts[f"Best of {run.name}"] = _kept(run.best, run.metric)
    except PlatformError as error:
        facts["Not shown"] = str(error)
    except ModuleNotFoundError as missing:
        facts["Not shown"] = f"run and checkpoints, as {missing.name} is not installed here (`make .venv/train`)"
    return facts


def _address_of_run(job_id: str) -> str:
    from mlplatform.tracking import server

    if not (address := server.uri()):
        return ""
    server.check(address)
    run = server.find_run(job_id, address)
    return server.run_url(run) if run else ""


def _kept(checkpoint: KeptCheckpoint, metric: str | None) -> str:
    """Return a checkpoint's metric and address; the address ends the line, so that it is easy to copy."""
    value = checkpoint.metrics.get(metric or "")
    shown = f"{value:.6g}" if isinstance(value, float) else value
    return f"{metric} {shown}: {checkpoint.uri}" if shown is not None else checkpoint.uri
