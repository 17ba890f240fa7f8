"""Addresses to which people have messages about their jobs sent."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from mlplatform.gateway.audit.log import Actor, record
from mlplatform.gateway.database.engine import Store, transaction
from mlplatform.gateway.errors import NoSuchNameError
from mlplatform.gateway.people.schema import PersonRow


class Webhooks(Store):
    """Addresses in the gateway's database; every method raises UnreachableError while that is unavailable."""

    @transaction
    def of(self, session: Session, person: str) -> str | None:
        """Return a person's address; None if there is none."""
        return session.scalar(select(PersonRow.webhook).where(PersonRow.name == person))

    @transaction
    def set(self, session: Session, person: str, address: str | None, actor: Actor) -> None:
        """Set or remove a person's address.

        Raises:
            NoSuchNameError: the person does not exist.
        """
        row = session.get(PersonRow, person)
        if row is None:
            raise NoSuchNameError(f"Person {person!r} does not exist; `mlplatform people list` lists them.")
        row.webhook = address
        # Not the address: its path may be a secret.
        record(session, actor, "set", f"webhook of {person}", after={"set": address is not None})
