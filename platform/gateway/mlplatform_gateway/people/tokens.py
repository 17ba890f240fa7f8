"""Tokens of people: their format, their check, log-in by a one-time code, and revocation."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from mlplatform.api.people import Role
from mlplatform.contract import PERSON_TOKEN
from mlplatform_gateway.audit.store import Actor, record
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.errors import LoginCodeError, NameTakenError, NoSuchNameError, TokenError
from mlplatform_gateway.people.rights import Principal
from mlplatform_gateway.people.schema import LoginCodeRow, MemberRow, PersonRow, TokenRow

PREFIX = "mlp_"

LIFETIME, CODE_LIFETIME = timedelta(days=90), timedelta(hours=24)

_OF_ATTEMPTS = timedelta(days=3650)
"""Longer than any attempt, which may have no limit. A token of an attempt is refused once the attempt has ended."""

_USED = timedelta(minutes=5)
"""Precision of the time of the last use: each request would otherwise write to the database."""

_ID_LETTERS, _SECRET_LETTERS = string.ascii_lowercase + string.digits, string.ascii_letters + string.digits

_CODE_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
"""Without letters that look like others: people type codes."""

_AGAIN = "ask an administrator for a code and run `mlplatform login`."


@dataclass(frozen=True)
class NewToken:
    """A token that was issued, as `mlp_<id>_<secret>`; nobody can read it again."""

    token: str
    person: str
    expires: datetime


class Tokens(Store):
    """Tokens in the gateway's database; every method raises UnreachableError while that is unavailable."""

    @transaction
    def check(self, session: Session, token: str) -> Principal:
        """Return the owner of a token.

        Raises:
            TokenError: it is wrong, expired or revoked.
        """
        return valid_owner(session, find(session, token, "person"))

    @transaction
    def all(self, session: Session, owner: str | None = None) -> Sequence[TokenRow]:
        """Return the tokens of a person, or all, in the order of their creation; without those of attempts."""
        query = select(TokenRow).where(TokenRow.kind != "job").order_by(TokenRow.created, TokenRow.id)
        return session.scalars(query if owner is None else query.where(TokenRow.owner == owner)).all()

    @transaction
    def exchange(self, session: Session, code: str, address: str, instead_of: str = "") -> NewToken:
        """Return a new token for a code, which is then used up.

        Args:
            code: a code of `People.add`.
            address: of the client, for the audit log.
            instead_of: id of a token that the client replaces, which is revoked; it must be of the same person.

        Raises:
            LoginCodeError: the code is wrong, used or expired.
            NameTakenError: the other token is of somebody else; the code remains valid.
        """
        now = datetime.now(UTC)
        row = session.get(LoginCodeRow, digest(plain_code(code)))
        if row is None or row.expires <= now:
            raise LoginCodeError("This log-in code is wrong, used or expired; ask an administrator for another one.")
        old = session.get(TokenRow, instead_of) if instead_of else None
        if instead_of and (old is None or old.owner != row.person):
            raise NameTakenError(
                f"The code is of {row.person}, and the token that it would replace is not; pass --force to replace it."
            )
        # Of two requests at the same moment, one deletes the row.
        used = session.execute(delete(LoginCodeRow).where(LoginCodeRow.digest == row.digest))
        if used.rowcount != 1:  # type: ignore[attr-defined]
            raise LoginCodeError("This log-in code was used a moment ago; ask an administrator for another one.")
        if old is not None and old.revoked is None:
            old.revoked = now
        issued = issue(session, "person", row.person, now, gpu_hours=row.gpu_hours)
        actor, after = Actor(row.person, "code", address), {"expires": issued.expires.isoformat(timespec="seconds")}
        record(session, actor, "log-in", f"token {issued.token.split('_')[1]}", after=after)
        return issued

    @transaction
    def revoke(
        self, session: Session, token_id: str, actor: Actor, person: str | None = None, is_own: bool = False
    ) -> None:
        """Revoke a token; do nothing if it was revoked before.

        Args:
            person: only this person's tokens; None for everybody's.
            is_own: the token itself was sent, as by a log-out; any other may be lost, and the person's password at
                MLflow with it, which changes.

        Raises:
            NoSuchNameError: the token does not exist.
        """
        token = session.get(TokenRow, token_id)
        if token is None or person not in (None, token.owner):
            raise NoSuchNameError(f"Token {token_id[:100]!r} does not exist; `mlplatform tokens list` lists them.")
        if token.revoked is None:
            token.revoked = datetime.now(UTC)
            owner = session.get(PersonRow, token.owner, with_for_update=True)
            if owner is not None and not is_own:
                owner.revocations += 1
            record(session, actor, "revoke", f"token {token_id}", {"owner": token.owner})


def owner_of(session: Session, name: str, since: datetime, token_id: str = "") -> Principal | None:
    """Return the person who owns a token or a job, with all rights; None if the person was removed since a time."""
    person = session.get(PersonRow, name)
    # A token is never valid for a person who was added later under the name of its owner.
    if person is None or person.created > since:
        return None
    joined = select(MemberRow).where(MemberRow.person == person.name).order_by(MemberRow.joined, MemberRow.team)
    teams = {member.team: Role(member.role) for member in session.scalars(joined)}
    return Principal(person.name, teams, person.administrator, token_id)


def find(session: Session, token: str, kind: str) -> TokenRow:
    """Return the row of a token, of one kind, that may have ended.

    Raises:
        TokenError: it is wrong.
    """
    match = PERSON_TOKEN.fullmatch(token)
    row = session.get(TokenRow, match[1]) if match else None
    if not match or not row or row.kind != kind or not hmac.compare_digest(row.digest, digest(match[2])):
        raise TokenError(f"Forbidden: Invalid authentication token of a person; {_AGAIN}")
    return row


def valid_owner(session: Session, token: TokenRow) -> Principal:
    """Return the owner of a token whose secret was shown.

    Raises:
        TokenError: it was revoked, or has expired.
    """
    owner, now = owner_of(session, token.owner, token.created, token.id), datetime.now(UTC)
    if token.revoked is not None or owner is None:
        raise TokenError(f"Forbidden: This token of {token.owner} was revoked; {_AGAIN}", token.owner)
    if now >= token.expires:
        ended = f"{token.expires:%Y-%m-%d %H:%M} UTC"
        raise TokenError(f"Forbidden: This token of {token.owner} expired on {ended}; {_AGAIN}", token.owner)
    if token.used is None or now - token.used > _USED:
        token.used = now
    return owner


def new_code(session: Session, person: str, gpu_hours: float | None = None) -> tuple[str, datetime]:
    """Store a code for one log-in of a person, in place of the person's earlier ones; return it, with its end."""
    now = datetime.now(UTC)
    session.execute(delete(LoginCodeRow).where((LoginCodeRow.person == person) | (LoginCodeRow.expires <= now)))
    code, expires = "-".join(_random(_CODE_LETTERS, 5) for _ in range(4)), now + CODE_LIFETIME
    session.add(LoginCodeRow(digest=digest(plain_code(code)), person=person, expires=expires, gpu_hours=gpu_hours))
    return code, expires


def plain_code(code: str) -> str:
    """Return a code without what people add when they type it: upper case, spaces, and other dashes."""
    return "".join(letter for letter in code.lower() if letter.isalnum())


def digest(secret: str) -> str:
    """Return the digest under which a secret is stored: hexadecimal SHA-256."""
    return hashlib.sha256(secret.encode()).hexdigest()


def issue(session: Session, kind: str, owner: str, now: datetime, **more: Any) -> NewToken:
    """Store a new token and return it.

    Args:
        kind: of `TokenRow`.
        owner: name of the person; empty for an attempt of a job of the shared token.
        more: other columns.
    """
    lifetime = LIFETIME if kind == "person" else _OF_ATTEMPTS
    token_id, secret, expires = _random(_ID_LETTERS, 20), _random(_SECRET_LETTERS, 40), now + lifetime
    row = TokenRow(id=token_id, digest=digest(secret), kind=kind, owner=owner, created=now, expires=expires, **more)
    session.add(row)
    return NewToken(f"{PREFIX}{token_id}_{secret}", owner, expires)


def _random(letters: str, length: int) -> str:
    return "".join(secrets.choice(letters) for _ in range(length))
