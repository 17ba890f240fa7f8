"""Messages to the owners of jobs, stored in the transaction of the event; `notify.loop` delivers them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from sqlalchemy import BigInteger, Identity, Integer
from sqlalchemy.orm import Mapped, mapped_column, object_session

from mlplatform_gateway.database.engine import Base
from mlplatform_gateway.jobs.schema import JobRow


class Event(StrEnum):
    """Event that a person may have a message about."""

    ENDED = "ended"
    LOST = "lost"
    LEFT = "left"
    """It was asked to leave, and has left."""

    BUDGET = "budget"


class MessageRow(Base):
    """A message that has not been delivered."""

    __tablename__ = "messages"

    sequence: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True)
    person: Mapped[str]
    job_id: Mapped[str]
    event: Mapped[str]
    state: Mapped[str]
    """State of the job after the event, as Ray names it."""

    text: Mapped[str]
    created: Mapped[datetime]
    due: Mapped[datetime]
    """Time of the next try."""

    tries: Mapped[int] = mapped_column(default=0)


def announce(job: JobRow, event: Event, state: str, at: datetime) -> None:
    """Store a message about a job of a person in the transaction that the job is part of."""
    session = object_session(job)
    if job.person and session is not None:
        text = f"Job {job.id} {_VERBS[state if event is Event.ENDED else event]}. {job.message}"
        row = MessageRow(person=job.person, job_id=job.id, event=event, state=state, text=text, created=at, due=at)
        session.add(row)


_VERBS = {
    "SUCCEEDED": "has succeeded",
    "FAILED": "has failed",
    "STOPPED": "was stopped",
    Event.LOST: "was lost",
    Event.LEFT: "has left",
}
