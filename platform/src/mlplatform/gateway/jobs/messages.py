"""Messages to the owners of jobs, stored in the transaction of the event; `control.messages` delivers them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import BigInteger, Identity, Integer, delete, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column, object_session

from mlplatform.gateway.database.base import Base
from mlplatform.gateway.database.engine import Store, transaction
from mlplatform.gateway.jobs.schema import JobRow

_BATCH = 50

_FIRST_PAUSE_S = 10.0

_TRIES = 8
"""Deliveries that are tried, with pauses that double: for about 20 minutes."""

_ALL_PAUSES_S = _FIRST_PAUSE_S * (2 ** (_TRIES - 1) - 1)


class Event(StrEnum):
    """Event that a person may have a message about."""

    ENDED = "ended"
    LOST = "lost"
    LEFT = "left"
    """It was asked to leave, and has left."""


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


class Outbox(Store):
    """Messages in the gateway's database; every method raises UnreachableError while that is unavailable."""

    @transaction
    def due(self, session: Session, at: datetime) -> Sequence[MessageRow]:
        """Return the first messages to deliver, in the order of their events."""
        rows = select(MessageRow).where(MessageRow.due <= at).order_by(MessageRow.sequence).limit(_BATCH)
        return session.scalars(rows).all()

    @transaction
    def remove(self, session: Session, sequence: int) -> None:
        """Remove a message that was delivered, or that nobody wants."""
        session.execute(delete(MessageRow).where(MessageRow.sequence == sequence))

    @transaction
    def failed(self, session: Session, sequence: int, at: datetime) -> bool:
        """Put a delivery off that has failed, and all later ones to the same person, who would hold up the others.

        Return False if it was the last try. This removes the message, and those that have waited for as long.
        """
        row = session.get(MessageRow, sequence)
        if row is None:
            return True
        row.tries += 1
        its = MessageRow.person == row.person
        if row.tries >= _TRIES:
            session.delete(row)
            session.execute(delete(MessageRow).where(its, MessageRow.created <= at - timedelta(seconds=_ALL_PAUSES_S)))
            return False
        pause = timedelta(seconds=_FIRST_PAUSE_S * 2 ** (row.tries - 1))
        session.execute(update(MessageRow).where(its, MessageRow.due < at + pause).values(due=at + pause))
        return True
