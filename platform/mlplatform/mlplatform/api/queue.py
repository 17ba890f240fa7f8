"""Jobs that wait for resources."""

from __future__ import annotations

from pydantic import Field

from mlplatform.api.base import Answer, Moment
from mlplatform.api.jobs import Attempt


class Reason(Answer):
    """A rule that keeps a job waiting, and a sentence on it with the numbers."""

    rule: str
    text: str


class QueueEntry(Answer):
    """A job that waits."""

    job: str = Field(description="Submission id.")
    person: str = Field(description="Owner, or `shared token`.")
    team: str = Field(description="Team, or `default`.")
    place: int | None = Field(ge=1, description="Null if it does not wait for resources yet: after others, a schedule.")
    requests: str = Field(description="GPUs and CPUs, those of workers included, as in `2 GPUs and 4 CPUs`.")
    since: Moment
    latest_start: Moment | None = Field(description="If all jobs run to their limits; null: unknown.")
    next: Moment | None = Field(default=None, description="Of a schedule; null while it is paused.")
    reasons: list[Reason]


class Queue(Answer):
    """The waiting jobs in their order, of which an answer has 1,000 at most."""

    at: Moment | None = Field(
        description="Time for which this holds, a second ago unless Ray does not answer; null if no job waits."
    )
    waiting: int = Field(description="All jobs that wait for resources.")
    entries: list[QueueEntry]


class Why(Answer):
    """Reasons why a job waits or has to leave, which clients put together from the queue and the job."""

    job: str
    status: str
    message: str = Field(description="The reasons, in sentences.")
    at: Moment | None = Field(description="As in the queue.")
    waiting: int = Field(description="As in the queue.")
    entry: QueueEntry | None = Field(description="Null unless it waits for resources.")
    leaving: Attempt | None = Field(description="The attempt that was asked to leave; null if there is none.")
