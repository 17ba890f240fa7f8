"""Accounts of people at MLflow, made through its REST interface: each has one, from the first log-in to the removal.

A password follows from a key of the gateway, so that all machines of a person have the same without its being stored.
It changes when a token of the person is revoked, and when somebody else gets the name; after a change of the key, as
after a restore without secrets, with the next log-in.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Sequence
from contextlib import suppress

from sqlalchemy import Engine, and_, exists, select, update
from sqlalchemy.orm import Session

from mlplatform.client.mlflow_rest import Account
from mlplatform.errors import AccessError, PlatformError
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.jobs.containment import repeat
from mlplatform_gateway.mlflow.rest import AsyncMlflowRest
from mlplatform_gateway.people.schema import PersonRow, TokenRow

_PASS_SECONDS = 30.0


class MlflowAccounts(Store):
    """Accounts of people.

    Args:
        client: client of MLflow as an administrator; None if it has no accounts.
        key: key from which the passwords follow; None if people have no accounts.
    """

    def __init__(self, engine: Engine, address: str | None, client: AsyncMlflowRest | None, key: str | None) -> None:
        super().__init__(engine)
        self._address = address or ""
        self._client = client if key else None
        self._key = (key or "").encode()
        self._alone = asyncio.Lock()

    async def log_in(self, person: str) -> str | None:
        """Return the password of a person who has a new token; None if people have no accounts at MLflow.

        MLflow has it at once or, if it is unavailable, after its return.
        """
        if self._client is None:
            return None
        await self._remember(person, None)
        await self.follow()
        people, _ = await self._wanted()
        return next((self._password(row) for row in people if row.name == person), None)

    async def tidy(self) -> None:
        """Let MLflow have the accounts that the database asks for.

        Raises:
            UnreachableError: MLflow or the database is unavailable.
            AccessError: MLflow rejects the gateway's account.
        """
        if self._client is None:
            return
        async with self._alone:
            people, removed = await self._wanted()
            there = {str(user["username"]) for user in (await self._client.call("GET", "users/list"))["users"]}
            for name in sorted(removed & there):
                await self._client.call("DELETE", "users/delete", {"username": name})
            for row in people:
                if row.mlflow_revocations != row.revocations:
                    await self._apply(self._client, row.name, self._password(row), row.name in there)
                    await self._remember(row.name, row.revocations)

    async def follow(self) -> None:
        """Do so at once after a change; what MLflow cannot do now is done by `run`."""
        with suppress(PlatformError):
            await self.tidy()

    async def run(self) -> None:
        """Tidy every 30 s; never returns."""
        await repeat(self.tidy, lambda: asyncio.sleep(_PASS_SECONDS), "Accounts of people at MLflow are not up to date")

    async def _apply(self, client: AsyncMlflowRest, name: str, password: str, is_there: bool) -> None:
        values = {"username": name, "password": password}
        if not is_there:
            await client.call("POST", "users/create", values)
        elif not await self._is_accepted(name, password):
            await client.call("PATCH", "users/update-password", values)

    async def _is_accepted(self, name: str, password: str) -> bool:
        async with AsyncMlflowRest(self._address, Account((name, password))) as own:
            try:
                await own.call("GET", "users/current")
            except AccessError:
                return False
        return True

    @transaction
    def _wanted(self, session: Session) -> tuple[Sequence[PersonRow], set[str]]:
        """Return the people who have logged in, and the names of those who were removed."""
        its = and_(TokenRow.owner == PersonRow.name, TokenRow.kind == "person", TokenRow.created >= PersonRow.created)
        people = session.scalars(select(PersonRow).where(exists().where(its))).all()
        owners = session.scalars(select(TokenRow.owner).where(TokenRow.kind == "person").distinct()).all()
        return people, set(owners) - set(session.scalars(select(PersonRow.name)))

    @transaction
    def _remember(self, session: Session, person: str, revocations: int | None) -> None:
        """Store with how many revocations MLflow has the person's password; None if it may not have it."""
        session.execute(update(PersonRow).where(PersonRow.name == person).values(mlflow_revocations=revocations))

    def _password(self, person: PersonRow) -> str:
        """Return a password in the form of a token, which clients send to the platform's own MLflow only."""
        text = f"mlflow\n{person.name}\n{person.created.timestamp()}\n{person.revocations}"
        found = hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()
        return f"mlp_{found[:20]}_{found[20:60]}"
