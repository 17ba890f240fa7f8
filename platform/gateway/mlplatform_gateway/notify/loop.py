"""Delivery of the messages to people: each at least once, in the order of the events while the receiver answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, delete, select, update
from sqlalchemy.orm import Session

from mlplatform.errors import PlatformError
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.jobs.containment import repeat
from mlplatform_gateway.jobs.store import now
from mlplatform_gateway.notify.sender import MessageSender
from mlplatform_gateway.notify.store import MessageRow
from mlplatform_gateway.people.schema import PersonRow

_PAUSE_SECONDS = 2.0
_BATCH = 50
_FIRST_PAUSE_S = 10.0

_TRIES = 8
"""Deliveries that are tried, with pauses that double: for about 20 minutes."""

_ALL_PAUSES_S = _FIRST_PAUSE_S * (2 ** (_TRIES - 1) - 1)

_log = logging.getLogger(__name__)


class Messenger(Store):
    """Background work that delivers messages; `run` never returns."""

    def __init__(self, engine: Engine, sender: MessageSender) -> None:
        super().__init__(engine)
        self._sender = sender

    async def run(self) -> None:
        """Deliver what is due, forever."""
        await repeat(self.deliver, lambda: asyncio.sleep(_PAUSE_SECONDS), "Messages to people wait")

    async def deliver(self) -> None:
        """Deliver the messages that are due, once; raises UnreachableError while the database is unavailable."""
        # A receiver that does not answer holds up nobody else's messages.
        await asyncio.gather(*(self._deliver(rows, address) for rows, address in await self._due()))

    async def _deliver(self, rows: Sequence[MessageRow], address: str | None) -> None:
        for row in rows:
            if address is not None:
                try:
                    await self._sender.send(address, _body(row))
                except PlatformError as error:
                    if not await self._put_off(row.sequence):
                        _log.warning("A message to %s about job %s is given up: %s", row.person, row.job_id, error)
                    return
            await self._remove(row.sequence)

    @transaction
    def _due(self, session: Session) -> list[tuple[list[MessageRow], str | None]]:
        """Return the first messages to deliver, those of each person in the order of their events, with the address."""
        due = select(MessageRow).where(MessageRow.due <= now()).order_by(MessageRow.sequence).limit(_BATCH)
        rows: dict[str, list[MessageRow]] = {}
        for row in session.scalars(due):
            rows.setdefault(row.person, []).append(row)
        addresses = select(PersonRow.name, PersonRow.webhook).where(PersonRow.name.in_(rows))
        known = {person.name: person.webhook for person in session.execute(addresses)}
        return [(its, known.get(person)) for person, its in rows.items()]

    @transaction
    def _remove(self, session: Session, sequence: int) -> None:
        """Remove a message that was delivered, or that nobody wants."""
        session.execute(delete(MessageRow).where(MessageRow.sequence == sequence))

    @transaction
    def _put_off(self, session: Session, sequence: int) -> bool:
        """Put a delivery off that has failed, and all later ones to the same person, who would hold up the others.

        Return False if it was the last try. This removes the message, and those that have waited for as long.
        """
        row, at = session.get(MessageRow, sequence), now()
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


def _body(row: MessageRow) -> Mapping[str, Any]:
    """Return a message as JSON; `text` alone is what chat programs show."""
    fields = {"job": row.job_id, "person": row.person, "event": row.event, "status": row.state}
    return {"text": row.text, **fields, "time": row.created.isoformat()}
