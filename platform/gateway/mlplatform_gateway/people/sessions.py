"""Sessions of browsers: a random id in a cookie instead of the token, with an end and a log-out."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, delete, select
from sqlalchemy.orm import Session

from mlplatform_gateway.audit.store import PLATFORM, Actor, record
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.errors import TokenError
from mlplatform_gateway.people.rights import SHARED, Principal
from mlplatform_gateway.people.schema import SessionRow, TokenRow
from mlplatform_gateway.people.tokens import digest, valid_owner

LIFETIME = timedelta(days=7)


class Sessions(Store):
    """Sessions in the gateway's database, so that a restart of the gateway logs nobody out.

    Every method raises UnreachableError while the database is unavailable.

    Args:
        token: returns the current shared token.
    """

    def __init__(self, engine: Engine, token: Callable[[], str]) -> None:
        super().__init__(engine)
        self._token = token

    @transaction
    def open(self, session: Session, actor: Actor = PLATFORM, token_id: str = "") -> str:
        """Store a session of somebody who has shown a valid token, and return its id.

        Args:
            token_id: id of the person's token that was shown; empty for the shared token.
        """
        session_id, present = secrets.token_urlsafe(32), datetime.now(UTC)
        session.execute(delete(SessionRow).where(SessionRow.expires < present))
        opened_with = session.get_one(TokenRow, token_id).digest if token_id else digest(self._token())
        key, expires = digest(session_id), present + LIFETIME
        session.add(SessionRow(digest=key, token_digest=opened_with, expires=expires))
        record(session, actor, "log-in", _named(key), after={"expires": expires.isoformat(timespec="seconds")})
        return session_id

    def key(self, session_id: str) -> str:
        """Return the key that buttons of a session's page send besides the cookie, which does not tell it.

        Other servers on the browser's host get the cookie, whatever their port. The key is for the page only, and ends
        with the session or when the shared token is replaced.
        """
        return hmac.new(self._token().encode(), f"buttons of session {session_id}".encode(), "sha256").hexdigest()

    @transaction
    def close(self, session: Session, session_id: str, actor: Actor) -> None:
        """End a session, for the audit log as its person if it is a person's; do nothing if it has ended."""
        row = session.get(SessionRow, digest(session_id))
        if row is not None:
            token = _opened_with(session, row)
            record(session, replace(actor, principal=token.owner) if token else actor, "log-out", _named(row.digest))
            _end(session, row)

    @transaction
    def holder(self, session: Session, session_id: str) -> Principal | None:
        """Return the one whose token opened a session; None if it does not exist, has expired, or the token has ended.

        The shared token ends when it is replaced, a person's when it expires or is revoked.
        """
        row = session.get(SessionRow, digest(session_id))
        if row is None:
            return None
        token = _opened_with(session, row)
        if datetime.now(UTC) < row.expires:
            with suppress(TokenError):
                if token is not None:
                    return valid_owner(session, token)
                if row.token_digest == digest(self._token()):
                    return SHARED
        _end(session, row)
        return None


def _opened_with(session: Session, row: SessionRow) -> TokenRow | None:
    """Return the person's token that opened a session; None if it was the shared one."""
    return session.scalars(select(TokenRow).where(TokenRow.digest == row.token_digest)).one_or_none()


def _end(session: Session, row: SessionRow) -> None:
    # A statement: another request may have deleted the row at this moment.
    session.execute(delete(SessionRow).where(SessionRow.digest == row.digest))


def _named(key: str) -> str:
    """Return the name of a session in the audit log; it tells nothing about the session's id."""
    return f"session {key[:8]}"
