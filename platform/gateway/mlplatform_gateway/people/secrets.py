"""Secrets of people: encrypted in the database, and read by attempts of their owner's jobs only."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from cryptography.fernet import Fernet, InvalidToken
from sqlalchemy import Engine, Select, delete, func, select
from sqlalchemy.orm import Session

from mlplatform.api.people import Secret
from mlplatform.errors import SettingsError
from mlplatform.text.throttle import ThrottledWarning
from mlplatform_gateway.audit.store import Actor, record
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.errors import NoSuchNameError, PersonError
from mlplatform_gateway.people.schema import PersonRow, SecretRow

MOST_BYTES = 64 << 10
"""Size of a value at most."""

MOST_SECRETS = 100
"""Secrets of a person at most: a node keeps them in memory while a job of the person runs there."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)

_warn = ThrottledWarning(logging.getLogger(__name__))


class Secrets(Store):
    """Secrets in the gateway's database; every method raises UnreachableError while that is unavailable.

    Args:
        key: key of `cryptography.fernet`; None if this platform stores no secrets.

    Raises:
        SettingsError: the key is invalid.
    """

    def __init__(self, engine: Engine, key: str | None) -> None:
        super().__init__(engine)
        try:
            self._cipher = None if key is None else Fernet(key)
        except ValueError as error:
            raise SettingsError(
                "The key for people's secrets (MLPLATFORM_SECRETS_KEY_PATH) is not one of cryptography.fernet; "
                "restore secrets/gateway_secrets_key, or delete it and run `make up` for a new one."
            ) from error

    @transaction
    def put(self, session: Session, person: str, name: str, value: bytes, actor: Actor) -> None:
        """Set a secret, in place of one with the same name.

        Raises:
            PersonError: name or value is invalid, the person has too many, or this platform stores none.
            NoSuchNameError: the person does not exist.
        """
        if self._cipher is None:
            raise PersonError(
                "This platform stores no secrets, because its gateway has no key for them "
                "(MLPLATFORM_SECRETS_KEY_PATH); the stack of `make up` has one."
            )
        _check(name, value)
        # Two requests at the same moment wait for each other, so that neither exceeds the limit.
        if session.get(PersonRow, person, with_for_update=True) is None:
            raise NoSuchNameError(f"Person {person!r} does not exist; `mlplatform people list` lists them.")
        row = session.get(SecretRow, (person, name))
        count = select(func.count()).select_from(SecretRow).where(SecretRow.person == person)
        if row is None and (session.scalar(count) or 0) >= MOST_SECRETS:
            raise PersonError(
                f"{person} has {MOST_SECRETS} secrets already, which is the limit; remove one with "
                "`mlplatform secrets remove`."
            )
        before = None if row is None else {"bytes": row.size}
        encrypted, now = self._cipher.encrypt(value).decode(), datetime.now(UTC)
        session.merge(SecretRow(person=person, name=name, value=encrypted, size=len(value), changed=now))
        record(session, actor, "set", _object(person, name), before, {"bytes": len(value)})

    @transaction
    def remove(self, session: Session, person: str, name: str, actor: Actor) -> None:
        """Remove a secret.

        Raises:
            NoSuchNameError: it does not exist.
        """
        row = session.get(SecretRow, (person, name)) if _NAME.fullmatch(name) else None
        if row is None:
            raise NoSuchNameError(f"Secret {name[:100]!r} does not exist; `mlplatform secrets list` lists yours.")
        session.delete(row)
        record(session, actor, "remove", _object(person, name), {"bytes": row.size})

    @transaction
    def listed(self, session: Session, person: str) -> list[Secret]:
        """Return the secrets of a person by name, without their values."""
        return [
            Secret(name=row.name, bytes=row.size, changed=row.changed, readable=self._decrypted(row) is not None)
            for row in session.scalars(_of(person))
        ]

    @transaction
    def values(self, session: Session, person: str) -> Mapping[str, bytes]:
        """Return the values of a person's secrets by name, without those that another key has encrypted."""
        found = {row.name: self._decrypted(row) for row in session.scalars(_of(person))}
        unreadable = [name for name, value in found.items() if value is None]
        if unreadable:
            _warn(
                "Jobs of %s do not get %s: another key than secrets/gateway_secrets_key has encrypted it.",
                person,
                unreadable[0],
            )
        return {name: value for name, value in found.items() if value is not None}

    def _decrypted(self, row: SecretRow) -> bytes | None:
        try:
            return None if self._cipher is None else self._cipher.decrypt(row.value)
        except InvalidToken:
            return None


def forget(session: Session, person: str) -> None:
    """Delete all secrets of a person, so that somebody who gets the same name later does not have them."""
    session.execute(delete(SecretRow).where(SecretRow.person == person))


def _check(name: str, value: bytes) -> None:
    if _NAME.fullmatch(name) is None:
        raise PersonError(
            f"Invalid name of a secret {name[:100]!r}: use up to 100 letters, digits, '.', '-' and '_', and begin with "
            "a letter, a digit or '_'."
        )
    if not value:
        raise PersonError(f"The value of secret {name!r} is empty; send a value, or remove the secret.")
    if len(value) > MOST_BYTES:
        raise PersonError(f"The value of secret {name!r} has {len(value)} bytes; at most {MOST_BYTES} are allowed.")


def _of(person: str) -> Select[SecretRow]:
    return select(SecretRow).where(SecretRow.person == person).order_by(SecretRow.name)


def _object(person: str, name: str) -> str:
    return f"secret {name} of {person}"
