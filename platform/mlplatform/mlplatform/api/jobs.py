"""Jobs: their submission with the platform's options, and what Ray's API and the platform's own say about them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

from mlplatform.api.base import Answer, Body, Moment
from mlplatform.capacity.resources import LEAST_AMOUNT
from mlplatform.text.durations import seconds_in

ID = r"^[A-Za-z0-9_][A-Za-z0-9_.:@+-]{0,127}$"
"""Pattern of the ids of jobs."""

SCHEDULE = "mlplatform.schedule"
"""Key of a schedule in the metadata of its job."""

JobClass = Literal["urgent", "normal", "idle"]
"""Class of a job, which orders the jobs of one team and never those of two."""

_LONGEST_SECONDS = 366 * 86400


def _countable(amount: float) -> float:
    if 0 < amount < LEAST_AMOUNT:
        raise ValueError(f"Ray counts in steps of {LEAST_AMOUNT}; use 0 or at least that")
    return amount


def _limit_in(given: object) -> float:
    seconds = seconds_in(str(given))  # JSON may have another type, which is never valid as text
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise ValueError("use at least 1s and at most 366d")
    return seconds


_Countable = AfterValidator(_countable)

_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True), _Countable]

TimeLimit = Annotated[
    float,
    BeforeValidator(_limit_in),
    WithJsonSchema({"type": "string", "pattern": "^([1-9][0-9]{0,2}[smh]|[1-9][0-9]?d|[1-9]w)$"}),
]
"""Longest duration of an attempt in seconds, given as in `4h`."""


_Ids = Annotated[
    list[Annotated[str, Field(pattern=ID)]],
    Field(min_length=1, max_length=100),
    BeforeValidator(lambda given: str(given).replace(",", " ").split()),
    WithJsonSchema({"type": "string", "pattern": f"^{ID[1:-1]}([, ]+{ID[1:-1]}){{0,99}}$"}),
]


class JobOptions(BaseModel):
    """Options for the platform in a job's metadata, where all values are strings."""

    model_config = ConfigDict(extra="ignore")

    user: str = Field("", description="Name of the submitter.")
    max_restarts_on_loss: int = Field(3, ge=0, le=1000, description="Restarts allowed after a node or Ray was lost.")
    max_restarts_on_failure: int = Field(
        0, ge=0, le=1000, description="Restarts allowed after a failure of the job itself."
    )
    time_limit: TimeLimit | None = Field(
        None,
        description="Time from the start of an attempt after which others may have its resources, in seconds, minutes, "
        "hours, days or weeks (default: that of the owner's team, if any).",
    )
    job_class: JobClass = Field("normal", validation_alias="class", description="Order among the jobs of the team.")
    group: str | None = Field(
        None, pattern=ID, description="Name that some jobs of a person have in common, for `at_most`."
    )
    at_most: int | None = Field(
        None, ge=1, le=10_000, description="Jobs of the group that may run when this one starts, this one included."
    )
    # With a prefix, because scripts that know nothing of the platform have metadata such as a `schedule`.
    after: _Ids = Field(
        [],
        validation_alias="mlplatform.after",
        description="Ids of jobs, with commas between, that must have succeeded before it starts.",
    )
    schedule: str | None = Field(
        None,
        validation_alias=SCHEDULE,
        max_length=200,
        description="Cron expression: submit such a job at these times, instead of running this one.",
    )
    timezone: str = Field(
        "UTC",
        validation_alias="mlplatform.timezone",
        max_length=100,
        description="Time zone of the schedule, as in `Europe/Berlin`.",
    )
    wait_for_capacity: bool = Field(
        False, description="Wait for a node that can run the job instead of rejecting it if no node can."
    )
    workers: int | None = Field(
        None, ge=1, le=10_000, description="Size of the worker group that the job's own code will request."
    )
    worker_cpus: Annotated[float, _Countable] = Field(1, ge=0, allow_inf_nan=False, description="CPUs of each worker.")
    worker_gpus: Annotated[float, _Countable] = Field(0, ge=0, allow_inf_nan=False, description="GPUs of each worker.")

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.after and self.schedule:
            raise ValueError(f"schedule={self.schedule!r} cannot have `after`: its jobs start at its times")
        if self.at_most is not None and self.group is None:
            raise ValueError(f"at_most={self.at_most} needs `group`, the name of the jobs that it counts")
        return self


_TEXTS = {"integer": "^[0-9]{1,%d}$", "number": "^[0-9]{1,4}$", "boolean": "^(true|false)$"}
"""Patterns of text for values of other types, that of integers by their digits."""


def _with_options(schema: dict[str, Any]) -> None:
    """Add the options to the description of the metadata, where all values are text."""
    schema["properties"] = {}
    for name, option in JobOptions.model_json_schema()["properties"].items():
        kind = option.get("anyOf", [option])[0]
        text = {key: kind[key] for key in ("enum", "pattern") if key in kind}
        if kind["type"] in _TEXTS:
            pattern = _TEXTS[kind["type"]]
            text["pattern"] = pattern % len(str(kind["maximum"])) if "%" in pattern else pattern
        default = f" (default {option['default']})" if option["default"] else ""
        schema["properties"][name] = {"type": "string", "description": f"{option['description']}{default}", **text}


class Submission(Body):
    """A job, with the fields of Ray 2.60 (`ray.dashboard.modules.job.common.JobSubmitRequest`)."""

    entrypoint: str = Field(min_length=1, description="A shell command.")
    submission_id: str | None = Field(
        None, pattern=ID, description="Must not end like the platform's own ids of attempts, `--1-0a1b2c`."
    )
    job_id: str | None = Field(None, pattern=ID, description="Ray's former name of `submission_id`.")
    runtime_env: dict[str, Any] = Field(
        {}, description="Ray's runtime environment; packages by the `gcs://` names of earlier uploads."
    )
    metadata: dict[str, str] = Field(
        {}, description="The user's own; the platform reads these keys.", json_schema_extra=_with_options
    )
    entrypoint_num_cpus: _Amount | None = None
    entrypoint_num_gpus: _Amount | None = None
    entrypoint_memory: Annotated[int, Field(ge=0, lt=1 << 63)] | None = Field(None, description="Bytes.")
    entrypoint_resources: dict[Annotated[str, Field(min_length=1)], _Amount] | None = None
    entrypoint_label_selector: dict[str, str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_none(cls, values: Any) -> Any:
        """Drop fields that are None, as Ray does, so that a newer client with more optional fields is accepted."""
        return {k: v for k, v in values.items() if v is not None} if isinstance(values, dict) else values


class Submitted(Answer):
    """A job that is stored, and will be started."""

    job_id: str = Field("", description="Ray's former name of `submission_id`.")
    submission_id: str


def _moment(milliseconds: int | None) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None


class Job(Answer):
    """A job as Ray's API describes it (`JobDetails`); its times are milliseconds since 1970."""

    # Those of jobs that only Ray has are its own.
    model_config = ConfigDict(json_schema_serialization_defaults_required=False, frozen=True)

    type: str = Field("SUBMISSION", json_schema_extra={"enum": ["SUBMISSION", "DRIVER"]})
    job_id: str | None = Field(None, description="Ray's id of the driver.")
    submission_id: str | None = None
    driver_info: dict[str, Any] | None = None
    status: str = Field(json_schema_extra={"enum": ["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"]})
    entrypoint: str
    message: Annotated[
        str,
        BeforeValidator(lambda message: message or ""),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ] = ""
    error_type: str | None = None
    start_time: int | None = None
    end_time: int | None = None
    # A notebook shows a job as the result of a cell, and their variables may have secrets.
    metadata: dict[str, Any] | None = Field(None, repr=False)
    runtime_env: dict[str, Any] | None = Field(None, repr=False)
    driver_agent_http_address: str | None = None
    driver_node_id: str | None = None
    driver_exit_code: int | None = None

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> str:
        """Submission id; of a driver that connected to Ray directly, Ray's id."""
        return self.submission_id or self.job_id or ""

    @property
    def user(self) -> str:
        """Submitter; empty if the submission names none."""
        return str((self.metadata or {}).get("user", ""))

    @property
    def started(self) -> datetime | None:
        """Time of the submission."""
        return _moment(self.start_time)

    @property
    def ended(self) -> datetime | None:
        """Time of the end; None before it."""
        return _moment(self.end_time)

    @property
    def exit_code(self) -> int | None:
        """Exit status of the last attempt's entry point, negative for a signal; None until it has one."""
        return self.driver_exit_code


class Attempt(Answer):
    """One start of a job."""

    model_config = ConfigDict(frozen=True)

    number: int = Field(ge=1)
    ray_submission_id: str = Field("", description="Submission id of the attempt in Ray.")
    outcome: str | None = Field(
        description="Null while it runs.",
        json_schema_extra={"enum": ["SUCCEEDED", "FAILED", "STOPPED", "LOST", "PREEMPTED", None]},
    )
    reason: str | None
    node: str | None = Field(description="Host name of the driver's node.")
    created: Moment
    ended: Moment | None
    leave_by: Moment | None = Field(None, description="Time at which it is stopped; null if it was not asked to leave.")
    leave_why: str | None = Field(None, description="Who takes back its resources, and why.")

    @property
    def leaves(self) -> bool:
        """Return whether it was asked to leave and has not ended."""
        return self.leave_by is not None and self.ended is None


class Links(Answer):
    """Relations of a job to others, and to the times of a schedule."""

    after: list[str] = Field(default=[], description="Jobs that must have succeeded before it starts.")
    origin: str | None = Field(default=None, description="Schedule that has submitted it, or job that it repeats.")
    due: Moment | None = Field(
        default=None,
        description="Next time of a schedule, null while it is paused; of a job that one has submitted, its time.",
    )
    late: bool = Field(default=False, description="Its time had passed: the gateway was down, or had rejected it.")


class JobWithAttempts(Job):
    """A job with its attempts in order."""

    state: str = Field(
        description="The platform's own state.",
        json_schema_extra={
            "enum": ["SCHEDULED", "HELD", "WAITING", "STARTING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"]
        },
    )
    relation: str = Field("other", description="Of the caller to it, as in the overview.")
    limit_s: float | None = Field(None, description="Time limit of an attempt in seconds; null if there is none.")
    links: Links = Links()
    max_restarts_on_loss: int = Field(ge=0, description="Restarts allowed after a node or Ray was lost.")
    max_restarts_on_failure: int = Field(ge=0, description="Restarts allowed after a failure of the job.")
    resources: dict[str, Any] = Field({}, description="Requests of the entry point, by the names in its submission.")
    attempts: list[Attempt]


class Arguments(Body):
    """Differences of a repetition from its job."""

    arguments: list[Annotated[str, Field(pattern=r"^[^\x00]*$")]] = Field(
        [], description="In place of those of its script or module; none keeps them."
    )
    user: str = Field("", description="Name of the caller, if it has the shared token.", pattern=r"^[^\x00]*$")


class Changes(Body):
    """Options of a resumed job; those that are not sent keep their values."""

    limit: TimeLimit | None = Field(None, description="New time limit of an attempt, as in `8h`.")


class Resumed(Answer):
    """A job that waits for its next attempt."""

    submission_id: str
    limit_s: float | None
    message: str


class Stopped(Answer):
    """A request to stop; false if the job had ended."""

    stopped: bool


class Page(Answer):
    """Address of a page in a job, with a ticket that is valid once, for a minute."""

    address: str = Field(repr=False)


class Log(Answer):
    """The log of all attempts and all nodes."""

    logs: str | None
