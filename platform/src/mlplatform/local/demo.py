"""Demo for newcomers: start a platform, train a model on it, show everything that it records."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from mlplatform.client import jobs as client_jobs
from mlplatform.client.jobs import Jobs
from mlplatform.errors import JobError, PlatformError
from mlplatform.local.platform import LocalPlatform
from mlplatform.settings.job import Settings
from mlplatform.storage import objects
from mlplatform.training.history import FIELDS

if TYPE_CHECKING:
    from mlflow.entities import Run


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
        console.print(config.addresses())
        with Jobs(config) as jobs:
            job_id = jobs.submit(["python", script.name, *arguments], script.parent, name=script.stem)
            console.print(f"Submitted {script} as job {job_id}")
            try:
                # For the summary at the end. Imported now, because a core is idle while the job's driver starts.
                import_module("mlflow")
                lines = _follow(jobs, job_id, config, console)
            except BaseException:
                if not was_running:
                    _abandon(jobs, job_id)
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


def _abandon(jobs: Jobs, job_id: str) -> None:
    """Stop a job that nobody waits for; otherwise the next start of the platform would resume it."""
    with suppress(PlatformError):
        jobs.stop(job_id)


def _follow(jobs: Jobs, job_id: str, config: Settings, console: Console) -> list[str]:
    """Show each report as it arrives; return the job's log."""
    text = TextColumn("{task.description}")
    lines = []
    with Progress(
        SpinnerColumn(), text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    ) as bar:
        task = bar.add_task("The job imports torch and starts its workers", total=None)
        epochs = None
        for line in jobs.follow(job_id):
            lines.append(line)
            if report := client_jobs.report_in(line):
                epochs = epochs or _epochs(job_id, config)
                done = int(report.get("epoch", report["step"])) + 1
                bar.console.print(f"epoch {done:2d}  {_as_text(report)}")
                bar.update(task, description="Training", completed=done, total=epochs)
    return lines


def _as_text(report: dict[str, Any]) -> str:
    values = {key: value for key, value in report.items() if isinstance(value, float) and key not in ("epoch", *FIELDS)}
    return "  ".join(f"{key} {value:.4f}" for key, value in values.items())


def _epochs(job_id: str, config: Settings) -> int | None:
    """Return the number of epochs that the job has recorded in its run."""
    run = _run(job_id, config)
    return int(run.data.params["epochs"]) if run and "epochs" in run.data.params else None


def _run(job_id: str, config: Settings) -> Run | None:
    import mlflow

    from mlplatform.tracking.server import find_run

    mlflow.set_tracking_uri(str(config.tracking_uri))
    return find_run(job_id)


def _show(job_id: str, config: Settings, home: Path, console: Console, kept: Mapping[str, str]) -> None:
    from mlplatform.tracking.server import run_url

    table = Table("Recorded", "", box=box.SIMPLE_HEAD)
    for name, value in kept.items():
        table.add_row(name, value)
    run = _run(job_id, config)
    if run is not None:
        table.add_row("test accuracy", f"{run.data.metrics.get('test_accuracy', float('nan')):.4f}")
        table.add_row("run", run_url(run))
    folders = (str(Path(file).parent) for file in objects.list_files(f"{config.storage}/{job_id}"))
    checkpoints = [folder for folder in folders if Path(folder).name.startswith("checkpoint_")]
    table.add_row("checkpoint", checkpoints[-1] if checkpoints else "none")
    if run is not None:
        _add_models(table, run)
        table.add_row("curves", str(_draw(run, home / "curves" / f"{job_id}.png")))
    # Addresses and paths stay on one line, even if it is wider than the terminal, so that they can be copied.
    Console(width=max(console.width, _TABLE_WIDTH), markup=False, emoji=False).print(table)
    console.print("`mlplatform local up` starts the same platform again and serves its web pages.")


def _add_models(table: Table, run: Run) -> None:
    from mlflow import MlflowClient

    client = MlflowClient()
    for found in client.search_model_versions(f"run_id = '{run.info.run_id}'"):
        # The search does not return aliases.
        version = client.get_model_version(found.name, found.version)
        table.add_row("model", version.name)
        table.add_row("version", str(version.version))
        table.add_row("alias", ", ".join(version.aliases) or "none")


def _draw(run: Run, picture: Path) -> Path:
    """Plot loss and accuracy over the steps, as MLflow has them."""
    from matplotlib.figure import Figure
    from mlflow import MlflowClient

    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, word in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for key in sorted(key for key in run.data.metrics if word in key and not key.startswith("system/")):
            history = MlflowClient().get_metric_history(run.info.run_id, key)
            if len(history) > 1:
                axes.plot([point.step for point in history], [point.value for point in history], marker=".", label=key)
        axes.set(xlabel="step", title=word)
        axes.legend()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)
    return picture
