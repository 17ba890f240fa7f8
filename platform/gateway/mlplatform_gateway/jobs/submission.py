"""Submission of a job: the body of `POST /api/jobs/`, checked before anything is stored."""

from __future__ import annotations

import json
import math
import re
import secrets
import string
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Self

from pydantic import ValidationError, model_validator

from mlplatform.api import jobs
from mlplatform.capacity.resources import Request, Resources, WorkerGroup
from mlplatform.contract import ATTEMPT_ID
from mlplatform.errors import JobError
from mlplatform_gateway.errors import PackageError
from mlplatform_gateway.jobs.repeats import plan_next
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.packages.store import check_name, package_names

_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000|\0")
"""A backslash that is itself escaped does not begin an escape: the text \\\\u0000 is harmless."""

_ID_LETTERS = string.ascii_letters + string.digits


_LIMIT_BYTES = 100 << 10
"""Largest entry point, and largest runtime environment with metadata.

Ray passes each of these to processes as one argument or variable, which Linux limits to 128 KiB. A process that cannot
be started makes a job that stays PENDING.
"""


class Submission(jobs.Submission):
    """A request for a job that Ray can start, and its row."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if ATTEMPT_ID.search(self.submission_id or self.job_id or ""):
            raise ValueError("ids that end like an attempt's (--1-0a1b2c) are reserved for the platform")
        variables = self.runtime_env.get("env_vars")
        if variables is not None and not (
            isinstance(variables, dict) and all(isinstance(value, str) for pair in variables.items() for value in pair)
        ):
            raise ValueError("runtime_env.env_vars must map strings to strings")
        modules = self.runtime_env.get("py_modules") or []
        if not isinstance(modules, list) or not all(isinstance(module, str) for module in modules):
            raise ValueError("runtime_env.py_modules must be a list of URIs")
        for name in package_names(self.runtime_env):
            _check_package(name)
        if not _finite(self.runtime_env):
            raise ValueError("runtime_env contains NaN or Infinity, which JSON does not support")
        _check_sizes(self)
        return self

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Parse the body of a request.

        Raises:
            JobError: the body is invalid; one sentence names field and value.
        """
        if _NUL.search(body):  # which Postgres can store neither in text nor in JSON
            raise JobError("The submission contains a NUL character (\\u0000); remove it.")
        try:
            submission = cls.model_validate_json(body)
            _ = submission.options
        except ValidationError as error:
            raise JobError(invalid_field(error)) from error
        return submission

    @cached_property
    def options(self) -> jobs.JobOptions:
        """The platform's options in the metadata, which `parse` has validated."""
        return jobs.JobOptions.model_validate(self.metadata)

    def new_id(self) -> str:
        """Return the requested id, or a new one in Ray's form."""
        chosen = self.submission_id or self.job_id
        return chosen or f"raysubmit_{''.join(secrets.choice(_ID_LETTERS) for _ in range(16))}"

    def job(self) -> JobRow:
        """Return the row of the requested job, with the present time as its arrival.

        Raises:
            JobError: its schedule is invalid.
        """
        options = self.options
        group = {"count": options.workers, "cpus": options.worker_cpus, "gpus": options.worker_gpus}
        arrived = datetime.now(UTC)
        job = JobRow(
            id=self.new_id(),
            user=options.user,
            entrypoint=self.entrypoint,
            runtime_env=self.runtime_env,
            job_metadata=self.metadata,
            entrypoint_request=self.entrypoint_request(),
            workers=group if options.workers else None,
            wait_for_capacity=options.wait_for_capacity,
            max_restarts_on_loss=options.max_restarts_on_loss,
            max_restarts_on_failure=options.max_restarts_on_failure,
            limit_s=options.time_limit,
            job_class=options.job_class,
            group_name=options.group,
            at_most=options.at_most,
            after=options.after,
            schedule=options.schedule,
            timezone=options.timezone if options.schedule else None,
            state=State.WAITING,
            message="Job has not started yet.",
            created=arrived,
            not_before=arrived,
            attempts=[],
        )
        if job.schedule is not None:
            plan_next(job, arrived)
        return job

    def entrypoint_request(self) -> dict[str, Any]:
        """Return the fields with the resources and labels that the entry point requests."""
        return self.model_dump(
            include={name for name in type(self).model_fields if "entrypoint_" in name}, exclude_none=True
        )


def resources_of(entry: dict[str, Any]) -> Resources:
    """Return the resources that an entry point reserves, as `capacity` counts them; memory in bytes."""
    custom = dict(entry.get("entrypoint_resources") or {})
    if memory := entry.get("entrypoint_memory"):
        custom["memory"] = memory
    return Resources(entry.get("entrypoint_num_cpus") or 0, entry.get("entrypoint_num_gpus") or 0, custom)


def group_of(workers: dict[str, Any] | None) -> WorkerGroup | None:
    """Return the worker group that a job declares."""
    return WorkerGroup(**workers) if workers else None


def request_of(job: JobRow) -> Request:
    """Return everything that a job requests of the cluster."""
    labels = job.entrypoint_request.get("entrypoint_label_selector") or {}
    return Request(resources_of(job.entrypoint_request), group_of(job.workers), labels)


def requested(job: JobRow) -> dict[str, float]:
    """Return everything that a job requests, its entry point and all of its workers, by Ray's name of the resource."""
    request = request_of(job)
    amounts = dict(request.entrypoint.amounts())
    if group := request.workers:
        for name, value in group.amounts().items():
            amounts[name] = amounts.get(name, 0) + group.count * value
    return amounts


def invalid_field(error: ValidationError) -> str:
    """Return one sentence that names the first invalid field of a body, and its value."""
    problem = error.errors()[0]
    field = ".".join(map(str, problem["loc"]))
    what = problem["msg"].removeprefix("Value error, ")
    if not field or problem["type"] == "missing":
        # The input is then the whole body, including variables with secrets.
        return f"{field or 'The body'} is not valid: {what}; correct it and submit again."
    value = repr(problem["input"])
    shown = value if len(value) <= 100 else f"{value[:100]}..."
    return f"{field}={shown} is not valid: {what}; correct it and submit again."


def _check_sizes(submission: Submission) -> None:
    """Raise ValueError if a part is too large for the processes of the job to start."""
    sizes = {
        "entrypoint": len(submission.entrypoint.encode("utf-8", "replace")),
        "runtime_env and metadata": len(json.dumps(submission.runtime_env)) + len(json.dumps(submission.metadata)),
    }
    for part, size in sizes.items():
        if size > _LIMIT_BYTES:
            raise ValueError(
                f"{part} has {size >> 10} KiB, more than the {_LIMIT_BYTES >> 10} KiB with which processes can start; "
                "put long values into a file of the working directory"
            )


def _check_package(name: str) -> None:
    try:
        check_name(name)
    except PackageError as error:
        raise ValueError(f"runtime_env names an invalid package: {error}") from error


def _finite(value: Any) -> bool:
    """Return whether a value is free of numbers that Postgres and browsers reject in JSON."""
    if isinstance(value, dict | list):
        return all(map(_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)
