"""Resources that people, teams and jobs have reserved."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from mlplatform.api.base import Answer, Count


class By(StrEnum):
    """Groups of a report."""

    PERSON = "person"
    TEAM = "team"
    JOB = "job"


class Window(BaseModel):
    """Groups, and a time window in whole seconds."""

    by: By = By.PERSON
    since: Count = Field(0, description="Unix time in seconds; without it, everything is counted.")
    until: Count | SkipJsonSchema[None] = Field(None, description="Unix time in seconds, by default the present time.")
    after: Count = Field(0, description="Only jobs with a higher sequence number, to continue to later ones.")


class Use(Answer):
    """Resources that a group has held, in seconds times resources: granted ones, and measured ones beyond.

    What is measured counts in proportion for an attempt that the window contains in part.
    """

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    job: str | None = Field(None, description="By job: submission id; that of a deleted job may be used again.")
    sequence: int | None = Field(None, description="By job: its number, which is never used again.")
    person: str | None = Field(None, description="By person and job: account, or the user that the submission named.")
    team: str | None = Field(None, description="By team and job; null without teams.")
    jobs: int
    running: int = Field(description="Attempts that have not ended.")
    gpu_seconds: float
    cpu_seconds: float
    lost_gpu_seconds: float = Field(
        description="Part of `gpu_seconds` in attempts that the platform lost: nobody pays for it."
    )
    lost_cpu_seconds: float
    borrowed_gpu_seconds: float = Field(description="Part of `gpu_seconds` beyond the team's share.")
    used_gpu_seconds: float | None = Field(
        description="Time for which GPUs were measured to compute, each counting in full; null if nothing measured it."
    )


class Report(Answer):
    """Groups in the order of names, or of the arrival of jobs."""

    since: int
    until: int = Field(description="Pass it to continue with the same window.")
    entries: list[Use]
    budgets: list[str] = Field([], description="A sentence on each team with a budget, for its present period.")
    next: int | None = Field(description="Value of `after` for the next request; null if there are no more entries.")
