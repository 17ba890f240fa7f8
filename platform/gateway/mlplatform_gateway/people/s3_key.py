"""The S3 key of the role `people`, which all people get after their log-in, and its replacement when one is removed.

At the stack's own object store it is an access key below the gateway's account, so that the gateway can replace it
without being an administrator there. Nothing is stored: name and secret follow from the account's secret and the time
at which a person was last removed. With another S3 server the key is in a file, which its operator changes.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from anyio import to_thread
from sqlalchemy import Engine, and_, exists, func, select
from sqlalchemy.orm import Session

from mlplatform.errors import AccessError, PlatformError
from mlplatform.secrets.credentials import read_s3_account
from mlplatform_gateway.database.engine import Store, transaction
from mlplatform_gateway.jobs.containment import repeat
from mlplatform_gateway.people.minio import AccessKeys
from mlplatform_gateway.people.schema import PersonRow, TokenRow

_PASS_SECONDS = 20.0


@dataclass(frozen=True)
class FileKey:
    """The key in a file of AWS credentials, as the operator of the S3 server has written it."""

    file: Path

    async def current(self) -> tuple[str, str]:
        """Return name and secret of the key.

        Raises:
            AccessError: the file has none.
        """
        try:
            return read_s3_account(self.file)
        except (PlatformError, KeyError) as error:
            raise AccessError(f"secrets/{self.file.name} has no key; the stack's operator writes it there.") from error

    async def follow(self) -> None:
        """Do nothing: only the operator can change the key."""

    async def run(self) -> None:
        """Return at once: there is nothing to repeat."""


class PeopleKey(Store):
    """The key below the gateway's account at the stack's own object store.

    Args:
        account: name and secret of the gateway's account.
    """

    def __init__(self, engine: Engine, endpoint: str, account: tuple[str, str]) -> None:
        super().__init__(engine)
        self._account = account
        self._keys = AccessKeys(endpoint, account)
        self._alone = asyncio.Lock()
        self._looked = float("-inf")
        self._name = ""

    async def current(self) -> tuple[str, str]:
        """Return name and secret of the key, which is made if there is none.

        Raises:
            UnreachableError: the object store or the database is unavailable.
            AccessError, StorageError: the object store rejects the account or the key.
        """
        async with self._alone:
            # The key's holder can delete it, so that it is looked up again now and then.
            if not self._name or time.monotonic() - self._looked > _PASS_SECONDS:
                name = await self._tidy()
                if not self._name:
                    await to_thread.run_sync(self._keys.add, name, self._secret(name))
                    self._name = name
            return self._name, self._secret(self._name)

    async def follow(self) -> None:
        """Delete the key at once if a person was removed since it was made; what fails now is done by `run`."""
        async with self._alone:
            # Nobody gets it before it was compared.
            self._name = ""
            with suppress(PlatformError):
                await self._tidy()

    async def run(self) -> None:
        """Do so every 20 s; never returns."""
        failure = "The S3 key of people was not compared with the removed people"
        await repeat(self._tidy_alone, lambda: asyncio.sleep(_PASS_SECONDS), failure)

    async def _tidy_alone(self) -> None:
        async with self._alone:
            await self._tidy()

    async def _tidy(self) -> str:
        """Delete all keys except the one that people have now; return its name, whether it exists or not."""
        name = f"people{self._derived(f'name since {await self._last_removal()}')[:14]}"
        there = await to_thread.run_sync(self._keys.names)
        for other in set(there) - {name}:
            await to_thread.run_sync(self._keys.delete, other)
        self._name, self._looked = name if name in there else "", time.monotonic()
        return name

    def _secret(self, name: str) -> str:
        """Return the secret of a key, which only the gateway's account can derive."""
        return self._derived(f"secret of {name}")[:40]

    def _derived(self, text: str) -> str:
        return hmac.new(self._account[1].encode(), text.encode(), hashlib.sha256).hexdigest()

    @transaction
    def _last_removal(self, session: Session) -> datetime | None:
        """Return the time at which the last token of a removed person ended; None if nobody was removed."""
        # A person who was added later under the same name does not own it.
        owner = exists().where(and_(PersonRow.name == TokenRow.owner, PersonRow.created <= TokenRow.created))
        return session.scalar(select(func.max(TokenRow.revoked)).where(TokenRow.kind == "person", ~owner))
