"""Sessions of browsers: a random id in a cookie instead of the token, with an end and a log-out."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, delete, select
from sqlalchemy.orm import Session

from mlplatform.gateway.audit.log import PLATFORM, Actor, record
from mlplatform.gateway.database.engine import transaction
from mlplatform.gateway.errors import TokenError
from mlplatform.gateway.people.principal import SHARED, Principal
from mlplatform.gateway.people.schema import SessionRow, TokenRow
from mlplatform.gateway.people.tokens import Tokens, digest

LIFETIME = timedelta(days=7)


@dataclass(frozen=True)
class _Known:
    """A session as the database has it.

    Attributes:
        token_digest: digest of the token that opened it.
        expires: its end.
        token_id: id of that token if it is a person's; empty if it is the shared one.
        person: owner of that token; empty likewise.
    """

    token_digest: str
    expires: datetime
    token_id: str = ""
    person: str = ""


class Sessions:
    """Sessions in the gateway's database, so that a restart of the gateway logs nobody out.

    Methods raise UnreachableError while the database is unavailable; known sessions are then still accepted.

    Args:
        engine: the gateway's database.
        token: returns the current shared token.
        tokens: tokens of people.
    """

    def __init__(self, engine: Engine, token: Callable[[], str], tokens: Tokens | None = None) -> None:
        self.engine = engine
        self._token = token
        self._tokens = tokens or Tokens(engine)
        self._known: dict[str, _Known] = {}
        self._ended = 0

    async def open(self, actor: Actor = PLATFORM, token_id: str = "") -> str:
        """Store a session of somebody who has shown a valid token, and return its id.

        Args:
            actor: the one who logs in.
            token_id: id of the person's token that was shown; empty for the shared token.
        """
        session_id = secrets.token_urlsafe(32)
        await self._add(digest(session_id), actor, token_id)
        return session_id

    async def close(self, session_id: str, actor: Actor | None = None) -> None:
        """End a session; do nothing if it has ended.

        Args:
            actor: the one who logs out; None if the session has expired. A person's session names the person.
        """
        await self._remove(digest(session_id), actor)
        self._known.pop(digest(session_id), None)
        self._ended += 1

    async def holder(self, session_id: str) -> Principal | None:
        """Return the one whose token opened a session; None if it does not exist, has expired, or the token has ended.

        The shared token ends when it is replaced, a person's when it expires or is revoked.
        """
        key, ended = digest(session_id), self._ended
        found = self._known.get(key) or await self._find(key)
        if found is None:
            return None
        # Ids that do not exist are not remembered: they would fill the memory. Nor is what was read while one ended.
        if ended == self._ended:
            self._known[key] = found
        if datetime.now(UTC) < found.expires and (holder := await self._owner(found)):
            return holder
        await self.close(session_id)
        return None

    async def _owner(self, found: _Known) -> Principal | None:
        if not found.token_id:
            return SHARED if found.token_digest == digest(self._token()) else None
        try:
            return await self._tokens.owner(found.token_id)
        except TokenError:
            return None

    @transaction
    def _add(self, session: Session, key: str, actor: Actor, token_id: str) -> None:
        session.execute(delete(SessionRow).where(SessionRow.expires < datetime.now(UTC)))
        opened_with = session.get_one(TokenRow, token_id).digest if token_id else digest(self._token())
        expires = datetime.now(UTC) + LIFETIME
        session.add(SessionRow(digest=key, token_digest=opened_with, expires=expires))
        record(session, actor, "log-in", _named(key), after={"expires": expires.isoformat(timespec="seconds")})

    @transaction
    def _find(self, session: Session, key: str) -> _Known | None:
        return _read(session, key)

    @transaction
    def _remove(self, session: Session, key: str, actor: Actor | None) -> None:
        found = _read(session, key)
        if found is None:
            return
        session.execute(delete(SessionRow).where(SessionRow.digest == key))
        if actor is not None:
            named = replace(actor, principal=found.person) if found.person else actor
            record(session, named, "log-out", _named(key))


def _read(session: Session, key: str) -> _Known | None:
    row = session.get(SessionRow, key)
    if row is None:
        return None
    token = session.scalars(select(TokenRow).where(TokenRow.digest == row.token_digest)).one_or_none()
    return _Known(row.token_digest, row.expires, *((token.id, token.owner) if token else ()))


def _named(key: str) -> str:
    """Return the name of a session in the audit log; it tells nothing about the session's id."""
    return f"session {key[:8]}"
