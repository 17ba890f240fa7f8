"""Writing the audit log within the transaction of an action, and reading it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from mlplatform_gateway.audit.schema import AuditRow
from mlplatform_gateway.database.engine import Store, transaction

SHARED_TOKEN = "shared token"  # noqa: S105 - its name, not its value
"""Principal of everybody who has the token."""

UNKNOWN = "unknown"
"""Principal of a failed log-in."""

_OBJECT_CHARACTERS = 300


@dataclass(frozen=True)
class Actor:
    """The one who takes an action.

    Attributes:
        principal: owner of the credential.
        kind: credential that was used: `token`, `code`, `session`, or `job <id>` for the token of an attempt of it.
        address: of the client's end of the connection.
    """

    principal: str
    kind: str
    address: str


PLATFORM = Actor("platform", "internal", "")
"""The gateway itself, for what no request has asked for."""


class AuditLog(Store):
    """The table, for actions that are not a transaction of the database themselves, and for readers.

    Methods raise UnreachableError while the database is unavailable.
    """

    @transaction
    def add(
        self, session: Session, /, actor: Actor, verb: str, target: str, **values: Mapping[str, Any] | None
    ) -> None:
        """Add a row in a transaction of its own; the arguments are those of `record`."""
        record(session, actor, verb, target, **values)

    @transaction
    def read(
        self, session: Session, limit: int, since: datetime | None = None, before: int | None = None
    ) -> list[AuditRow]:
        """Return the latest rows, the oldest of them first.

        Args:
            limit: number of rows at most.
            since: only rows from this time on.
            before: only rows with a lower sequence number, to continue to earlier ones.
        """
        query = select(AuditRow).order_by(AuditRow.sequence.desc()).limit(limit)
        if since is not None:
            query = query.where(AuditRow.time >= since)
        if before is not None:
            query = query.where(AuditRow.sequence < before)
        return list(reversed(session.scalars(query).all()))


def record(
    session: Session,
    actor: Actor,
    verb: str,
    target: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Add a row to the transaction of an action: both are stored, or neither.

    Args:
        verb: the action.
        target: kind and id of what it changes, as in `job train-1`; its first 300 characters are stored.
        before: values of `target` that the action changes; None if it did not exist.
        after: the same values afterwards; None if it no longer exists.
    """
    session.add(
        AuditRow(
            time=datetime.now(UTC),
            principal=actor.principal,
            kind=actor.kind,
            address=actor.address,
            verb=verb,
            object=target[:_OBJECT_CHARACTERS].replace("\0", "?"),  # Postgres cannot store NUL
            before=_encoded(before),
            after=_encoded(after),
        )
    )


def _encoded(values: Mapping[str, Any] | None) -> str | None:
    return None if values is None else json.dumps(values, separators=(",", ":"))
