"""Arrays: jobs that are submitted together and differ in their index only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from sqlalchemy import Engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from mlplatform.contract import ARRAY_JOBS
from mlplatform.errors import JobError
from mlplatform.gateway.audit.log import PLATFORM, Actor, record
from mlplatform.gateway.database.engine import transaction
from mlplatform.gateway.errors import JobExistsError, NoSuchJobError
from mlplatform.gateway.jobs.audited import facts_of
from mlplatform.gateway.jobs.schema import JobRow
from mlplatform.gateway.jobs.submission import Submission, parsed

INDEX, SIZE = "MLPLATFORM_ARRAY_INDEX", "MLPLATFORM_ARRAY_SIZE"
"""Variables of each job of an array: its index, from 0, and the number of jobs."""

_ARRAY_BYTES = 32 << 20
"""Largest array: the gateway keeps all jobs that wait in its memory of 768 MiB."""

_ID_CHARACTERS = 120
"""An array's id leaves room for the index in the ids of its jobs."""


class ArraySubmission(BaseModel):
    """A valid request for an array of jobs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    job: Submission
    count: Annotated[int, Field(ge=1, le=ARRAY_JOBS)]
    at_most: Annotated[int, Field(ge=1, le=ARRAY_JOBS)] | None = None
    """Jobs that may run at the same time."""

    @model_validator(mode="after")
    def _check_id(self) -> Self:
        if len(self.job.submission_id or "") > _ID_CHARACTERS:
            raise ValueError(f"the submission_id of an array has at most {_ID_CHARACTERS} characters")
        return self

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Parse the body of a request.

        Raises:
            JobError: the body is invalid; one sentence names field and value.
        """
        array = parsed(cls, body, lambda array: array.job.options())
        if array.count * len(body) > _ARRAY_BYTES:
            raise JobError(
                f"{array.count} jobs of {len(body) >> 10} KiB each, with command, variables and metadata, exceed "
                f"{_ARRAY_BYTES >> 20} MiB; put files into the working directory, or submit fewer jobs at once."
            )
        return array

    def jobs(self) -> list[JobRow]:
        """Return the rows of the jobs, under ids that consist of the array's and their index, as in `sweep.0`."""
        array_id = self.job.new_id()
        at_most = {} if self.at_most is None else {"at_most": str(self.at_most)}
        metadata = {**self.job.metadata, "array": array_id, **at_most}
        variables = self.job.runtime_env.get("env_vars") or {}

        def row(index: int) -> JobRow:
            own = {**variables, INDEX: str(index), SIZE: str(self.count)}
            changes: dict[str, Any] = {
                "submission_id": f"{array_id}.{index}",
                "metadata": metadata,
                "runtime_env": {**self.job.runtime_env, "env_vars": own},
            }
            return self.job.model_copy(update=changes).job()

        return [row(index) for index in range(self.count)]


class Arrays:
    """Arrays in the gateway's database; every method raises UnreachableError while that is unavailable."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @transaction
    def add(self, session: Session, jobs: Sequence[JobRow], actor: Actor = PLATFORM) -> None:
        """Store all jobs of a new array, or none.

        Raises:
            JobExistsError: the id of one is in use.
        """
        first = jobs[0]
        try:
            session.add_all(jobs)
            session.flush()
        except IntegrityError as error:
            raise JobExistsError(
                f"Jobs of an array {first.array_id} already exist; use a different submission_id."
            ) from error
        record(session, actor, "submit", f"array {first.array_id}", after={**facts_of(first), "jobs": len(jobs)})

    @transaction
    def members(self, session: Session, array_id: str) -> Sequence[JobRow]:
        """Return the jobs of an array that are not deleted, in the order of their index.

        Raises:
            NoSuchJobError: there are none.
        """
        jobs = select(JobRow).where(JobRow.array_id == array_id, JobRow.deleted.is_(None))
        found = session.scalars(jobs.order_by(JobRow.created)).all() if "\0" not in array_id else []
        if not found:
            raise NoSuchJobError(f"Array {array_id!r} does not exist")
        return found
