"""Demo for newcomers: start a platform, train a model on it, show everything that it records."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from mlplatform.client import jobs as client_jobs
from mlplatform.client.jobs import Jobs
from mlplatform.client.mlflow_rest import Account, MlflowRest
from mlplatform.contract import TAG_JOB, TAG_ROLE
from mlplatform.errors import JobError, PlatformError
from mlplatform.local.platform import LocalPlatform
from mlplatform.settings.job import Settings
from mlplatform.storage import objects
from mlplatform.training.history import FIELDS

_LAST_LINES = 30

_TABLE_WIDTH = 240


def run(script: Path, arguments: Sequence[str], local: LocalPlatform | None = None) -> None:
    """Train `script` on an embedded platform, as `mlplatform submit` would on the stack.

    A platform that was not running before is stopped at the end, also on Ctrl-C and SIGTERM.

    Raises:
        HostError: Ray, MLflow or the gateway did not start.
        JobError: there is no such file, or the job did not succeed; its last log lines are printed.
    """
    if not script.is_file():
        raise JobError(f"There is no file {script}; run the demo from the repository's folder, or name a Python file.")
    console = Console(highlight=False, markup=False, emoji=False)
    platform = local or LocalPlatform()
    was_running = platform.status() is not None
    with _stopped_at_the_end(platform, was_running):
        with console.status("Starting Ray, MLflow and the gateway on this machine"):
            config = platform.up()
        console.print(config.addresses(), soft_wrap=True)
        with Jobs(config) as jobs:
            job_id = jobs.submit(["python", script.name, *arguments], script.parent, name=script.stem)
            console.print(f"Submitted {script} as job {job_id}")
            try:
                lines = _follow(jobs, job_id, config, console)
            except BaseException:
                if not was_running:
                    # Nobody waits for it any more, and the next start of the platform would resume it.
                    with suppress(PlatformError):
                        jobs.stop(job_id)
                raise
            job, attempts = jobs.get(job_id), jobs.attempts(job_id)
        if job.status != "SUCCEEDED":
            console.print("\n".join(lines[-_LAST_LINES:]))
            raise JobError(f"Job {job_id} ended {job.status}; its last lines are above.")
        kept = {
            "attempts": ", ".join(f"{attempt.number} {attempt.outcome}" for attempt in attempts),
            "log": f"{len(lines)} lines, also after the platform was stopped: mlplatform logs {job_id}",
        }
        _show(job_id, config, platform.home, console, kept)


@contextmanager
def _stopped_at_the_end(platform: LocalPlatform, was_running: bool) -> Iterator[None]:
    """End the block on Ctrl-C and SIGTERM; ignore both while the platform is being stopped.

    Python's own KeyboardInterrupt will not do: raised in the import of an extension module (2 of 60 attempts while
    MLflow was imported), it makes `python -m` end by SIGINT, even if it was caught.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if not was_running:
            platform.down()


def _follow(jobs: Jobs, job_id: str, config: Settings, console: Console) -> list[str]:
    """Show each report as it arrives; return the job's log."""
    text = TextColumn("{task.description}")
    lines = []
    columns = (SpinnerColumn(), text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with _mlflow(config) as mlflow, Progress(*columns, console=console) as bar:
        task = bar.add_task("The job imports torch and starts its workers", total=None)
        epochs = None
        for line in jobs.follow(job_id):
            lines.append(line)
            if report := client_jobs.report_in(line):
                epochs = epochs or _epochs(job_id, mlflow)
                done = int(report.get("epoch", report["step"])) + 1
                bar.console.print(f"epoch {done:2d}  {_as_text(report)}")
                bar.update(task, description="Training", completed=done, total=epochs)
    return lines


def _as_text(report: dict[str, Any]) -> str:
    values = {key: value for key, value in report.items() if isinstance(value, float) and key not in ("epoch", *FIELDS)}
    return "  ".join(f"{key} {value:.4f}" for key, value in values.items())


def _epochs(job_id: str, mlflow: MlflowRest) -> int | None:
    """Return the number of epochs that the job has recorded in its run."""
    run = _run(job_id, mlflow)
    return next((int(p["value"]) for p in run["data"].get("params", ()) if p["key"] == "epochs"), None) if run else None


def _mlflow(config: Settings) -> MlflowRest:
    """Return a client of the platform's MLflow; `import mlflow` would take 4 s beside the job's own imports."""
    variables = config.environment()
    account = Account((variables["MLFLOW_TRACKING_USERNAME"], variables["MLFLOW_TRACKING_PASSWORD"]))
    return MlflowRest(str(config.tracking_uri), account)


def _run(job_id: str, mlflow: MlflowRest) -> dict[str, Any] | None:
    found = mlflow.all("GET", "experiments/search", "experiments", {"max_results": 1000})
    values = {
        "experiment_ids": [experiment["experiment_id"] for experiment in found],
        "filter": f"tags.`{TAG_JOB}` = '{job_id}' and tags.`{TAG_ROLE}` = 'job'",
        "max_results": 1,
    }
    runs = mlflow.call("POST", "runs/search", values).get("runs")
    return runs[0] if runs else None


def _show(job_id: str, config: Settings, home: Path, console: Console, kept: Mapping[str, str]) -> None:
    table = Table("Recorded", "", box=box.SIMPLE_HEAD)
    for name, value in kept.items():
        table.add_row(name, value)
    with _mlflow(config) as mlflow:
        run = _run(job_id, mlflow)
        metrics = {point["key"]: float(point["value"]) for point in run["data"].get("metrics", ())} if run else {}
        if run is not None:
            table.add_row("test accuracy", f"{metrics.get('test_accuracy', float('nan')):.4f}")
            page = "/#/experiments/{experiment_id}/runs/{run_id}".format(**run["info"])
            table.add_row("run", f"{config.page_of(str(config.tracking_uri))}{page}")
        folders = (str(Path(file).parent) for file in objects.list_files(f"{config.storage}/{job_id}"))
        checkpoints = [folder for folder in folders if Path(folder).name.startswith("checkpoint_")]
        table.add_row("checkpoint", checkpoints[-1] if checkpoints else "none")
        if run is not None:
            _add_models(table, run["info"]["run_id"], mlflow)
            picture = home / "curves" / f"{job_id}.png"
            table.add_row("curves", str(_draw(run["info"]["run_id"], metrics, mlflow, picture)))
    # Addresses and paths stay on one line, even if it is wider than the terminal, so that they can be copied.
    Console(width=max(console.width, _TABLE_WIDTH), markup=False, emoji=False).print(table)
    console.print("`mlplatform local up` starts the same platform again and serves its web pages.")


def _add_models(table: Table, run_id: str, mlflow: MlflowRest) -> None:
    versions = {"filter": f"run_id = '{run_id}'", "max_results": 100}
    for found in mlflow.all("GET", "model-versions/search", "model_versions", versions):
        # The search does not return aliases.
        named = {"name": found["name"], "version": found["version"]}
        version = mlflow.call("GET", "model-versions/get", named)["model_version"]
        table.add_row("model", version["name"])
        table.add_row("version", version["version"])
        table.add_row("alias", ", ".join(version.get("aliases", ())) or "none")


def _draw(run_id: str, metrics: Collection[str], mlflow: MlflowRest, picture: Path) -> Path:
    """Plot loss and accuracy over the steps, as MLflow has them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, word in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for key in sorted(key for key in metrics if word in key and not key.startswith("system/")):
            history = mlflow.all("GET", "metrics/get-history", "metrics", {"run_id": run_id, "metric_key": key})
            if len(history) > 1:
                steps, values = [int(point["step"]) for point in history], [float(point["value"]) for point in history]
                axes.plot(steps, values, marker=".", label=key)
        axes.set(xlabel="step", title=word)
        axes.legend()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)
    return picture
