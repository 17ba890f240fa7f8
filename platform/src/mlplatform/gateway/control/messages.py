"""Delivery of the messages to people: each at least once, in the order of the events while the receiver answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine

from mlplatform.errors import PlatformError
from mlplatform.gateway.control.containment import repeat
from mlplatform.gateway.jobs.messages import MessageRow, Outbox
from mlplatform.gateway.jobs.store import now
from mlplatform.gateway.people.webhooks import Webhooks
from mlplatform.gateway.upstream.messages import MessageSender

_PAUSE_SECONDS = 2.0

_log = logging.getLogger(__name__)


class Messenger:
    """Background work that delivers messages; `run` never returns."""

    def __init__(self, engine: Engine, sender: MessageSender) -> None:
        self._outbox = Outbox(engine)
        self._webhooks = Webhooks(engine)
        self._sender = sender

    async def run(self) -> None:
        """Deliver what is due, forever."""
        await repeat(self.deliver, lambda: asyncio.sleep(_PAUSE_SECONDS), "Messages to people wait")

    async def deliver(self) -> None:
        """Deliver the messages that are due, once.

        Raises:
            UnreachableError: the database is unavailable.
        """
        due = await self._outbox.due(now())
        addresses = await self._webhooks.all() if due else {}
        people: dict[str, list[MessageRow]] = {}
        for row in due:
            people.setdefault(row.person, []).append(row)
        # A receiver that does not answer holds up nobody else's messages.
        await asyncio.gather(*(self._deliver(rows, addresses.get(person)) for person, rows in people.items()))

    async def _deliver(self, rows: list[MessageRow], address: str | None) -> None:
        for row in rows:
            if address is not None:
                try:
                    await self._sender.send(address, _body(row))
                except PlatformError as error:
                    if not await self._outbox.failed(row.sequence, now()):
                        _log.warning("A message to %s about job %s is given up: %s", row.person, row.job_id, error)
                    return
            await self._outbox.remove(row.sequence)


def _body(row: MessageRow) -> Mapping[str, Any]:
    """Return a message as JSON; `text` alone is what chat programs show."""
    fields = {"job": row.job_id, "person": row.person, "event": row.event, "status": row.state}
    return {"text": row.text, **fields, "time": row.created.isoformat()}
