"""Input of `mlplatform submit`: a script or a folder, its `job.toml`, and the options that override it."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from mlplatform.api.jobs import JobClass
from mlplatform.capacity.resources import Resources, Shortage, WorkerGroup
from mlplatform.client.jobs import Jobs
from mlplatform.errors import JobError
from mlplatform.text.durations import seconds_in

NAME = "job.toml"


def _duration(text: str) -> str:
    seconds_in(text)
    return text


class Workers(BaseModel):
    """Table `[workers]`: the worker group that the job's own code will request from Ray; checked, not started."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    count: int = Field(1, ge=1)
    """Workers of the group."""

    cpus: float = Field(1, ge=0)
    """CPUs of each worker; Ray Train's own default is 1."""

    gpus: float = Field(0, ge=0)
    """GPUs of each worker; a fraction below 1 shares one."""


class JobFile(BaseModel):
    """A `job.toml`; every key is optional, and unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    entrypoint: str | list[str] | None = None
    """Shell line or words of the command, run in the job's folder; a script submitted by name takes precedence."""

    cpus: float = Field(0, ge=0)
    """CPUs that the entry point itself reserves."""

    gpus: float = Field(0, ge=0)
    """GPUs that the entry point itself reserves; a fraction below 1 shares one."""

    workers: Workers | None = None
    """The worker group that the job's code requests."""

    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of all processes of the job."""

    max_restarts_on_failure: int | None = Field(None, ge=0)
    """Restarts allowed after a failure of the entry point itself; None means 0."""

    max_restarts_on_loss: int | None = Field(None, ge=0)
    """Restarts allowed after its node or Ray was lost; None means 3."""

    limit: Annotated[str, AfterValidator(_duration)] | None = None
    """Time limit of an attempt, as in `4h`, after which it leaves for others; None means the team's."""

    job_class: JobClass | None = Field(None, alias="class")
    """Order among the jobs of the team: urgent, normal or idle; None means normal."""

    at_most: int | None = Field(None, ge=1, le=10_000)
    """Jobs of this name that may run at the same time; None means unlimited."""

    after: list[str] = Field(default_factory=list)
    """Ids of the jobs that must have succeeded before it starts."""

    schedule: str | None = None
    """Cron expression: submit such a job at these times, instead of running this one."""

    timezone: str | None = None
    """Time zone of the schedule; None means UTC."""

    wait_for_capacity: bool = False
    """Wait for a node that can run the job, if no current node ever can, instead of being rejected."""

    experiment: str | None = None
    """MLflow experiment of the job's run, if the code sets none."""

    note: str | None = None
    """Shown with the job's run."""

    pip: list[str] = Field(default_factory=list)
    """Packages that Ray installs for this job only, before it starts."""

    @classmethod
    def beside(cls, folder: Path) -> Self:
        """Read the folder's `job.toml`; without one, every option has its default.

        Raises:
            JobError: it is not TOML, or a key is unknown or has a value that is not valid.
        """
        file = folder / NAME
        if not file.is_file():
            return cls.model_validate({})
        try:
            values = tomllib.loads(file.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise JobError(f"{file} is not valid TOML: {error}.") from error
        return cls._checked(values, str(file))

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """Return a copy with the options of the command line; tables are merged key by key.

        Raises:
            JobError: an option has a value that is not valid.
        """
        values = self.model_dump(exclude_unset=True, by_alias=True)
        for key, value in options.items():
            values[key] = {**(values.get(key) or {}), **value} if isinstance(value, Mapping) else value
        return self._checked(values, "The options")

    @classmethod
    def _checked(cls, values: Mapping[str, Any], source: str) -> Self:
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problems = "; ".join(_problem(problem) for problem in error.errors())
            raise JobError(f"{source} cannot be used: {problems}.") from error


@dataclass(frozen=True)
class Submission:
    """A job in the form that `Jobs.submit` accepts."""

    entrypoint: str | list[str]
    folder: Path
    name: str
    file: JobFile

    @property
    def resources(self) -> Resources:
        return Resources(self.file.cpus, self.file.gpus)

    @property
    def workers(self) -> WorkerGroup | None:
        workers = self.file.workers
        return WorkerGroup(workers.count, workers.cpus, workers.gpus) if workers else None

    @property
    def env(self) -> dict[str, str]:
        experiment = {"MLFLOW_EXPERIMENT_NAME": self.file.experiment} if self.file.experiment else {}
        return {**experiment, **self.file.env}


def submission(path: Path, arguments: Sequence[str] = (), **options: Any) -> Submission:
    """Build a job from a script or a folder, its `job.toml` and the options.

    Args:
        path: a Python file, whose folder is uploaded with it, or a folder.
        arguments: added to the command.
        options: fields of `JobFile` that override those of the file.

    Raises:
        JobError: there is nothing at `path`, no entry point is named, or a key, value or option is not valid.
    """
    if path.is_file():
        folder, script, name = path.parent, ["python", path.name], path.stem
    elif path.is_dir():
        folder, script, name = path, None, path.resolve().name
    else:
        raise JobError(f"There is no file {path}; name the Python file to run, or a folder with a {NAME}.")
    file = JobFile.beside(folder).with_options(options)
    command = options.get("entrypoint") or script or file.entrypoint
    if command is None:
        missing = "names no entrypoint" if (folder / NAME).is_file() else "is not there"
        raise JobError(f'{folder / NAME} {missing}; write one with entrypoint = "python train.py", or name the script.')
    return Submission(_with_arguments(command, arguments), folder, name, file)


def submit(client: Jobs, job: Submission, on_wait: Callable[[Shortage], None] | None = None) -> str:
    """Submit a job and return its id; see `Jobs.submit`."""
    return client.submit(
        job.entrypoint,
        job.folder,
        name=job.name,
        env=job.env,
        resources=job.resources,
        workers=job.workers,
        note=job.file.note,
        max_restarts_on_failure=job.file.max_restarts_on_failure,
        max_restarts_on_loss=job.file.max_restarts_on_loss,
        job_class=job.file.job_class,
        at_most=job.file.at_most,
        limit_s=None if job.file.limit is None else seconds_in(job.file.limit),
        after=job.file.after,
        schedule=job.file.schedule,
        timezone=job.file.timezone,
        wait_for_capacity=job.file.wait_for_capacity,
        pip=job.file.pip,
        on_wait=on_wait,
    )


def pairs(words: Sequence[str]) -> dict[str, str]:
    """Environment variables from words of the form KEY=VALUE.

    Raises:
        JobError: a word has another form.
    """
    for word in words:
        if not word.partition("=")[0].isidentifier() or "=" not in word:
            raise JobError(f"--env {word!r} is not a pair; write --env KEY=VALUE.")
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def _with_arguments(command: str | list[str], arguments: Sequence[str]) -> str | list[str]:
    if isinstance(command, str):
        return " ".join([command, *map(shlex.quote, arguments)])
    return [*command, *arguments]


def _keys(model: type[BaseModel]) -> list[str]:
    """Return the keys of a table as they are written."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _problem(problem: Any) -> str:
    """Return one of pydantic's errors in terms of the file's keys."""
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        known = Workers if "." in key else JobFile
        return f"unknown key {key!r}, the known ones are {', '.join(_keys(known))}"
    what = problem["msg"].removeprefix("Value error, ")
    return f"{key} = {problem['input']!r}: {what[0].lower()}{what[1:]}"
