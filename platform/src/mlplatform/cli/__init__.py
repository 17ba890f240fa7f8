"""The command line; a table of contents, each command imports what it needs when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlplatform.cli import registry, stack
from mlplatform.errors import JobError, PlatformError

if TYPE_CHECKING:
    from datetime import datetime

    from mlplatform.client.jobs import Job, Jobs
    from mlplatform.storage.checkpoints import Kept


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Submit training jobs, follow them, and handle the models they make.",
)

local_app = typer.Typer(no_args_is_help=True, help="The embedded platform: Ray and MLflow on this machine, no Docker.")

app.add_typer(local_app, name="local")

app.add_typer(registry.models_app, name="models")

app.add_typer(registry.data_app, name="data")

app.add_typer(stack.app, name="stack")

JobId = Annotated[str, typer.Argument(help="The job's id, as `submit` and `jobs` print it.")]


@app.command()
def submit(
    path: Annotated[Path, typer.Argument(help="Python file, or folder with a job.toml; the folder is uploaded.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Passed to the entry point (after --).")] = None,
    entrypoint: Annotated[str | None, typer.Option(help="Shell line to run instead of the file.")] = None,
    cpus: Annotated[float | None, typer.Option(help="CPUs that the entry point itself reserves.")] = None,
    gpus: Annotated[float | None, typer.Option(help="GPUs that it reserves; 0.5 shares one.")] = None,
    workers: Annotated[int | None, typer.Option(help="Workers that the job's own code will ask for.")] = None,
    worker_cpus: Annotated[float | None, typer.Option(help="CPUs of each worker; 1 if not said.")] = None,
    worker_gpus: Annotated[float | None, typer.Option(help="GPUs of each worker.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for all its processes; may be repeated.")] = None,
    retries: Annotated[int | None, typer.Option(help="Starts again after it failed by its own fault.")] = None,
    max_losses: Annotated[int | None, typer.Option(help="Starts again after it was lost with a node; 3.")] = None,
    wait_for_capacity: Annotated[bool, typer.Option(help="Wait for a node that can run it.")] = False,
    experiment: Annotated[str | None, typer.Option(help="MLflow experiment, where the code names none.")] = None,
    note: Annotated[str | None, typer.Option(help="Shown with the job's run.")] = None,
    pip: Annotated[list[str] | None, typer.Option(help="Package for this job alone; may be repeated.")] = None,
    wait: Annotated[bool, typer.Option(help="Follow the log, and exit as the job does.")] = True,
) -> None:
    """Run a Python file, or what a folder's job.toml says, as a job.

    A job.toml beside the file may hold the same options, by the same names; those given here win. A job that the nodes
    can never run is refused before anything is uploaded.
    """
    from mlplatform.client import job_file
    from mlplatform.client.jobs import Jobs

    group = {"count": workers, "cpus": worker_cpus, "gpus": worker_gpus}
    options = {
        "entrypoint": entrypoint,
        "cpus": cpus,
        "gpus": gpus,
        "workers": {key: value for key, value in group.items() if value is not None},
        "env": job_file.pairs(env or []),
        "retries": retries,
        "max_losses": max_losses,
        "wait_for_capacity": wait_for_capacity or None,
        "experiment": experiment,
        "note": note,
        "pip": pip,
    }
    job = job_file.submission(
        path, arguments or [], **{key: value for key, value in options.items() if value not in (None, {}, [])}
    )
    with Jobs() as client:
        job_id = client.submit(
            job.entrypoint,
            job.folder,
            name=job.name,
            env=job.env,
            resources=job.resources,
            workers=job.workers,
            note=job.file.note,
            retries=job.file.retries,
            max_losses=job.file.max_losses,
            wait_for_capacity=job.file.wait_for_capacity,
            pip=job.file.pip,
            on_wait=print,
        )
        print(f"Submitted job {job_id}; follow it with `mlplatform logs -f {job_id}`.", flush=True)
        if wait:
            _follow(client, job_id)


@app.command()
def jobs(
    job_id: Annotated[str | None, typer.Argument(help="Show all of one job: attempts, run, checkpoints.")] = None,
) -> None:
    """List jobs, the latest first, or show one of them."""
    if job_id:
        _show(job_id)
        return
    from rich.console import Console
    from rich.table import Column, Table

    from mlplatform.client.jobs import Jobs

    # Whole in the narrowest terminal, as it is what every other command asks for; the command is wrapped.
    table = Table(Column("Job", no_wrap=True), "Status", "User", "Started", "Command", box=None)
    with Jobs() as client:
        for job in client.list():
            started = f"{job.started.astimezone():%Y-%m-%d %H:%M:%S}" if job.started else ""
            table.add_row(job.id, job.status, job.user, started, job.entrypoint)
    # What people typed, brackets and colons included.
    Console(markup=False, emoji=False).print(table)


@app.command()
def logs(job_id: JobId, follow: Annotated[bool, typer.Option("--follow", "-f", help="Until it ends.")] = False) -> None:
    """Print what a job has written."""
    from mlplatform.client.jobs import Jobs

    with Jobs() as client:
        if not follow:
            print(client.logs(job_id), end="")
            return
        for line in client.follow(job_id):
            print(line, flush=True)


@app.command()
def wait(
    job_id: JobId,
    timeout: Annotated[float | None, typer.Option(help="Seconds; without it, as long as it takes.")] = None,
) -> None:
    """Wait until a job has ended; exit 0 if it succeeded."""
    from mlplatform.client.jobs import Jobs

    with Jobs() as client:
        _exit_as(client.wait(job_id, timeout))


@app.command()
def stop(job_id: JobId) -> None:
    """End a job; its checkpoints and its run stay."""
    from mlplatform.client.jobs import Jobs

    with Jobs() as client:
        print(f"Job {job_id} is being stopped." if client.stop(job_id) else f"Job {job_id} had already ended.")


@app.command()
def env(root: stack.Root = Path()) -> None:
    """Print the exports that a shell or a laptop needs to use the stack of a checkout, or else this process' own."""
    from mlplatform.settings.job import settings
    from mlplatform.stack import env as stack_env

    root = root.absolute()
    if not (root / ".env").is_file():
        print(_exports(settings().environment()))
        return
    print(_exports(stack_env.client_settings(root).environment()))
    # A comment, so that the shell that evaluates the exports skips it.
    account = root / "secrets" / "mlflow_person"
    print(f"# MLflow looks for its account in one place only: install -D -m 600 {account} ~/.mlflow/credentials")


@app.command()
def doctor(root: stack.Root = Path(), only: stack.Only = "") -> None:
    """Check that the stack can start on this host; each problem comes with its fix."""
    from mlplatform.stack.doctor import check_host

    check_host(root.absolute(), only)
    print("The stack can start on this host.")


@local_app.command("up")
def local_up() -> None:
    """Start the embedded platform and leave it running."""
    from mlplatform.local.platform import Local

    reached = Local().up()
    print(f"MLflow: {reached.tracking_uri}\nRay:    {reached.ray_address} (token: {reached.ray_auth_token_path})")
    print('Use it in this shell: eval "$(mlplatform local env)"')


@local_app.command("down")
def local_down() -> None:
    """Stop the embedded platform; runs, models and checkpoints stay."""
    from mlplatform.local.platform import Local

    print("Stopped." if Local().down() else "It was not running.")


@local_app.command("status")
def local_status() -> None:
    """Say whether the embedded platform answers; exit 1 if it does not."""
    from mlplatform.local.platform import Local

    reached = Local().status()
    if reached is None:
        print("The embedded platform is not running; start it with `mlplatform local up`.")
        raise typer.Exit(1)
    print(f"MLflow: {reached.tracking_uri}\nRay:    {reached.ray_address} (token: {reached.ray_auth_token_path})")


@local_app.command("env")
def local_env() -> None:
    """Print the exports that bring a shell to the embedded platform."""
    from mlplatform.errors import UnreachableError
    from mlplatform.local.platform import Local

    reached = Local().status()
    if reached is None:
        raise UnreachableError("The embedded platform is not running; start it with `mlplatform local up`.")
    print(_exports(reached.environment()))


@local_app.command("demo")
def local_demo(
    script: Annotated[Path, typer.Argument(help="The job to run.")] = Path("jobs/digits.py"),
    arguments: Annotated[list[str] | None, typer.Argument(help="Passed to the script (after --).")] = None,
) -> None:
    """Start the platform, train a model on it, show everything, and stop it again."""
    from mlplatform.local.demo import run

    run(script, arguments or [])


def main() -> None:
    """Entry point: an error of ours is one sentence on stderr, anything else is a defect and keeps its traceback."""
    try:
        app()
    except PlatformError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except ModuleNotFoundError as missing:
        # Of our extras: the virtual environment of `make up` holds what the stack itself needs.
        print(
            f"This needs the Python package {missing.name}, which is not installed here; run `make .venv/train` in the "
            "checkout, or type it in JupyterLab's terminal.",
            file=sys.stderr,
        )
        raise SystemExit(1) from None


def _show(job_id: str) -> None:
    """Print what is known of a job, one line a fact; what MLflow or the storage does not tell is said so."""
    from mlplatform.client.jobs import Jobs
    from mlplatform.storage.checkpoints import fits

    with Jobs() as client:
        job, attempts = client.get(job_id), client.attempts(job_id)
    facts = {"Status": job.status, "User": job.user, "Command": job.entrypoint, "Time": _times(job.started, job.ended)}
    facts["Message"] = (job.message.strip().splitlines() or [""])[-1]
    for attempt in attempts:
        node = attempt.node and f"on {attempt.node}"
        said = (attempt.outcome or "goes on", node, _times(attempt.created, attempt.ended), attempt.reason)
        facts[f"Attempt {attempt.number}"] = ", ".join(word for word in said if word)
    try:
        facts["Run"] = _address_of_run(job_id)
        for fit in fits(job_id):
            facts[f"Latest of {fit.name}"] = _kept(fit.latest, "epoch" if "epoch" in fit.latest.metrics else "step")
            if fit.best:
                facts[f"Best of {fit.name}"] = _kept(fit.best, fit.metric)
    except PlatformError as error:
        facts["Not seen"] = str(error)
    except ModuleNotFoundError as missing:
        facts["Not seen"] = f"run and checkpoints, as {missing.name} is not installed here (`make .venv/train`)"
    width = max(map(len, facts))
    print(f"{'Job':{width}}  {job_id}")
    for name, value in facts.items():
        if value:
            print(f"{name:{width}}  {value}")


def _times(*moments: datetime | None) -> str:
    """Those that are known, in this machine's time zone."""
    return " to ".join(f"{moment.astimezone():%Y-%m-%d %H:%M:%S}" for moment in moments if moment)


def _address_of_run(job_id: str) -> str:
    from mlplatform.tracking import server

    if not (address := server.uri()):
        return ""
    server.check(address)
    run = server.find_run(job_id, address)
    return server.run_url(run) if run else ""


def _kept(checkpoint: Kept, metric: str | None) -> str:
    """A checkpoint's address, which nothing follows so that it can be copied by its line's end, after what it is."""
    value = checkpoint.metrics.get(metric or "")
    shown = f"{value:.6g}" if isinstance(value, float) else value
    return f"{metric} {shown}: {checkpoint.uri}" if shown is not None else checkpoint.uri


def _follow(client: Jobs, job_id: str) -> None:
    try:
        for line in client.follow(job_id):
            print(line, flush=True)
    except KeyboardInterrupt:
        print(f"\nJob {job_id} goes on; follow it with `mlplatform logs -f {job_id}`,", file=sys.stderr)
        print(f"or end it with `mlplatform stop {job_id}`.", file=sys.stderr)
        raise SystemExit(130) from None
    _exit_as(client.get(job_id))


def _exit_as(job: Job) -> None:
    if job.status != "SUCCEEDED":
        raise JobError(f"Job {job.id} ended {job.status}: {(job.message.strip().splitlines() or ['no reason'])[-1]}")
    print(f"Job {job.id} succeeded.")


def _exports(variables: dict[str, str]) -> str:
    import shlex

    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items()))
