"""Sessions of browsers: a random id in a cookie instead of the token, with an end and a log-out."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, delete
from sqlalchemy.orm import Session

from mlplatform.gateway.audit.log import PLATFORM, Actor, record
from mlplatform.gateway.database.engine import transaction
from mlplatform.gateway.people.schema import SessionRow

LIFETIME = timedelta(days=7)


class Sessions:
    """Sessions in the gateway's database, so that a restart of the gateway logs nobody out.

    Methods raise UnreachableError while the database is unavailable; known sessions are then still accepted.

    Args:
        engine: the gateway's database.
        token: returns the current token.
    """

    def __init__(self, engine: Engine, token: Callable[[], str]) -> None:
        self.engine = engine
        self._token = token
        self._known: dict[str, tuple[str, datetime]] = {}

    async def open(self, actor: Actor = PLATFORM) -> str:
        """Store a session of somebody who has shown the current token, and return its id."""
        session_id = secrets.token_urlsafe(32)
        await self._add(_digest(session_id), actor)
        return session_id

    async def close(self, session_id: str, actor: Actor | None = None) -> None:
        """End a session; do nothing if it has ended.

        Args:
            actor: the person who logs out; None if the session has expired.
        """
        self._known.pop(_digest(session_id), None)
        await self._remove(_digest(session_id), actor)

    async def is_open(self, session_id: str) -> bool:
        """Return whether a session exists, has not expired, and was opened with the current token."""
        digest = _digest(session_id)
        found = self._known.get(digest) or await self._find(digest)
        if found is None:
            return False
        # Ids that do not exist are not remembered: they would fill the memory.
        self._known[digest] = found
        token_digest, expires = found
        if token_digest == _digest(self._token()) and datetime.now(UTC) < expires:
            return True
        await self.close(session_id)
        return False

    @transaction
    def _add(self, session: Session, digest: str, actor: Actor) -> None:
        session.execute(delete(SessionRow).where(SessionRow.expires < datetime.now(UTC)))
        token_digest, expires = _digest(self._token()), datetime.now(UTC) + LIFETIME
        session.add(SessionRow(digest=digest, token_digest=token_digest, expires=expires))
        record(session, actor, "log-in", _named(digest), after={"expires": expires.isoformat(timespec="seconds")})

    @transaction
    def _find(self, session: Session, digest: str) -> tuple[str, datetime] | None:
        row = session.get(SessionRow, digest)
        return (row.token_digest, row.expires) if row else None

    @transaction
    def _remove(self, session: Session, digest: str, actor: Actor | None) -> None:
        if row := session.get(SessionRow, digest):
            session.delete(row)
            if actor is not None:
                record(session, actor, "log-out", _named(digest))


def _named(digest: str) -> str:
    """Return the name of a session in the audit log; it tells nothing about the session's id."""
    return f"session {digest[:8]}"


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
