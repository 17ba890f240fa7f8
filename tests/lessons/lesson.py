"""Lessons of `jobs/` as test cases: how to run one, and how to read its results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from mlplatform.api.jobs import Job
from mlplatform.client.jobs import Jobs, report_in
from mlplatform.errors import JobError
from mlplatform.settings.environment import changed_environment
from mlplatform.settings.job import settings
from mlplatform.storage import addresses, objects

JOBS = Path(__file__).parents[2] / "jobs"
SECONDS = 600


@dataclass(frozen=True)
class Left:
    """Results of one run of a lesson, in the log, in MLflow and in storage."""

    job: Job
    log: str
    client: MlflowClient

    @property
    def lines(self) -> list[str]:
        return self.log.splitlines()

    @property
    def reports(self) -> list[dict[str, Any]]:
        """Reports of the workers, in order."""
        return [report for line in self.lines if (report := report_in(line)) is not None]

    @cached_property
    def runs(self) -> list[Run]:
        """Every MLflow run of the job, oldest first."""
        experiments = [experiment.experiment_id for experiment in self.client.search_experiments()]
        return self.client.search_runs(
            experiments, f"tags.`mlplatform.job_id` = '{self.job.id}'", order_by=["attributes.start_time ASC"]
        )

    @property
    def run(self) -> Run:
        """The job's only top-level run."""
        (run,) = [run for run in self.runs if "mlflow.parentRunId" not in run.data.tags]
        return run

    @property
    def children(self) -> list[Run]:
        return [run for run in self.runs if run.data.tags.get("mlflow.parentRunId") == self.run.info.run_id]

    @property
    def models(self) -> list[Any]:
        """Models that the job's run has logged."""
        wanted = f"source_run_id = '{self.run.info.run_id}'"
        return list(self.client.search_logged_models([self.run.info.experiment_id], wanted))

    def points(self, metric: str, run: Run | None = None) -> list[tuple[int, float]]:
        """(step, value) of each point of a metric."""
        history = self.client.get_metric_history((run or self.run).info.run_id, metric)
        return [(point.step, point.value) for point in history]

    def artifacts(self, path: str = "") -> set[str]:
        """Paths of the job's run's artifact files below `path`, at any depth."""
        found = set()
        for entry in self.client.list_artifacts(self.run.info.run_id, path):
            found |= self.artifacts(entry.path) if entry.is_dir else {entry.path}
        return found

    def text(self, path: str) -> str:
        """An artifact of the job's run, as text."""
        return Path(self.client.download_artifacts(self.run.info.run_id, path)).read_text()

    def printed(self, label: str) -> Any:
        """Last JSON value that the lesson printed after `label: `, in its driver or else in a worker."""
        found = [line for line in self.lines if f"{label}: " in line]
        (*_, line) = [line for line in found if line.startswith(label)] or found
        return json.loads(line.partition(f"{label}: ")[2])

    @property
    def stored(self) -> list[str]:
        """Files below the job's folder in checkpoint storage."""
        return objects.list_files(addresses.checkpoint_uri(job_id=self.job.id))


@contextmanager
def reading(variables: Mapping[str, str]) -> Iterator[None]:
    """Set the environment that this process needs to read the results, as in a user's shell."""
    with changed_environment(variables):
        settings.cache_clear()
        yield
    settings.cache_clear()


@dataclass(frozen=True)
class Lesson:
    """One way to run a script of `jobs/`, with arguments that keep it short, and a check of its results.

    Attributes:
        script: path below `jobs/`; the script's folder is submitted.
        promise: what the lesson teaches, in one sentence; shown when the check fails.
        check: raises AssertionError, naming the broken promise.
        arguments: command-line arguments that keep it short.
        status: expected final status of the job.
        options: arguments of `Jobs.submit`, such as `env` or `pip`.
        stack_only: True if it needs something that only the containers have, such as `/shared`.
        always: whether CI runs it; all the others are in `make nightly`.
        prepare: preparation by the user, such as uploading a data set.
    """

    script: str
    promise: str
    check: Callable[[Left], None]
    arguments: Sequence[str] = ()
    status: str = "SUCCEEDED"
    options: dict[str, Any] = field(default_factory=dict)
    stack_only: bool = False
    always: bool = False
    prepare: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        return "-".join([Path(self.script).stem, *(argument.lstrip("-") for argument in self.arguments)])

    def run(self, jobs: Jobs, env: Mapping[str, str] | None = None) -> Left:
        """Submit the lesson as `mlplatform submit` does, with additional variables in `env`, and wait until it ends.

        Raises:
            AssertionError: it did not end with the expected status; the message contains its log.
        """
        self.prepare()
        script = JOBS / self.script
        options = {**self.options, "env": {**(env or {}), **self.options.get("env", {})}}
        job_id = jobs.submit(["python", script.name, *self.arguments], script.parent, **options)
        try:
            job = jobs.wait(job_id, SECONDS)
        except JobError as error:
            raise AssertionError(f"{self.promise}\n{error}\n{jobs.logs(job_id)[-6000:]}") from error
        log = jobs.logs(job_id)
        assert job.status == self.status, f"{self.promise}\nended {job.status}: {job.message}\n{log[-6000:]}"
        return Left(job, log, MlflowClient())

    def judge(self, left: Left) -> None:
        """Check the results of a run.

        Raises:
            AssertionError: the check failed; the message names the broken promise.
        """
        try:
            self.check(left)
        except Exception as error:
            broken = f"{self.script} broke its promise: {self.promise}\n{error or type(error).__name__}"
            raise AssertionError(f"{broken}\n{left.log[-6000:]}") from error
