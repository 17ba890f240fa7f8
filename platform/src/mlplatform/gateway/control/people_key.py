"""The S3 key of the role `people`, which all people get after their log-in, and its replacement when one is removed.

With MinIO it is an access key below the gateway's own account, so that the gateway can replace it without being an
administrator there. Nothing is stored: the key's name tells when it was made and by which account, and its secret is
derived from the name and the account's secret. With another S3 server the key is in a file, which its operator changes.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from anyio import to_thread
from sqlalchemy import Engine, and_, exists, func, select
from sqlalchemy.orm import Session

from mlplatform.credentials import read_s3_account
from mlplatform.errors import AccessError, PlatformError, StorageError, UnreachableError
from mlplatform.gateway.database.engine import transaction
from mlplatform.gateway.people.schema import PersonRow, TokenRow
from mlplatform.throttle import ThrottledWarning

if TYPE_CHECKING:
    from minio.minioadmin import MinioAdmin

_PASS_SECONDS = 20.0

_TIMEOUTS = {"connect": 3.0, "read": 10.0}
"""In seconds; those of `MinioAdmin` are five minutes."""

_NAME = re.compile(r"people([0-9a-f]{8})([0-9a-f]{6})")
"""Name of a key: the second when it was made, and a check of both by the account that made it."""

_POLICY: dict[str, object] = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*"]},
        {"Effect": "Deny", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::jobs", "arn:aws:s3:::jobs/*"]},
        {"Effect": "Deny", "Action": ["s3:DeleteObjectVersion"], "Resource": ["arn:aws:s3:::*"]},
        {"Effect": "Deny", "Action": ["admin:*"]},
    ],
}
"""The rights of the gateway's account, except for its own bucket, former versions, and keys."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileKey:
    """The key in a file, as the operator of the S3 server has written it.

    Attributes:
        file: AWS credentials file.
    """

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


@dataclass
class PeopleKey:
    """The key below the gateway's account at MinIO.

    Args:
        engine: the gateway's database.
        endpoint: URL of MinIO.
        account: name and secret of the gateway's account.
    """

    engine: Engine
    endpoint: str
    account: tuple[str, str] = field(repr=False)

    def __post_init__(self) -> None:
        self._admin = _connect(self.endpoint, *self.account)
        self._alone = asyncio.Lock()
        self._looked = -_PASS_SECONDS
        self._name = ""
        self._warn = ThrottledWarning(_log)

    async def current(self) -> tuple[str, str]:
        """Return name and secret of the key, which is made if there is none.

        Raises:
            UnreachableError: MinIO or the database is unavailable.
            AccessError, StorageError: MinIO rejects the account or the key.
        """
        async with self._alone:
            # The key's holder can delete it at MinIO, so that it is looked up again now and then.
            if not self._name or time.monotonic() - self._looked > _PASS_SECONDS:
                await self._tidy()
            if not self._name:
                self._name = await self._make()
            return self._name, self._secret(self._name)

    async def follow(self) -> None:
        """Delete the key at once if a person was removed since it was made; what fails now is done by `run`."""
        async with self._alone:
            # Nobody gets it before it was compared.
            self._name = ""
            with suppress(PlatformError):
                await self._tidy()

    async def run(self) -> None:
        """Do so every 20 s, forever."""
        while True:
            try:
                async with self._alone:
                    await self._tidy()
            except PlatformError as error:
                self._warn("%s", error)
            except Exception:
                _log.exception("The S3 key of people was not compared with the removed people; this will be retried.")
            await asyncio.sleep(_PASS_SECONDS)

    async def _tidy(self) -> None:
        """Find the key, and delete all that others or a former account made, or that a removed person has seen."""
        since, kept = await self._last_removal(), ""
        listed = await self._request(lambda: self._admin.list_service_account(self.account[0]))
        for name in sorted(key["accessKey"] for key in json.loads(listed).get("accounts") or []):
            made = self._made(name)
            if made is None or made <= since or kept:
                await self._request(lambda name=name: self._admin.delete_service_account(name))  # type: ignore[misc]
            else:
                kept = name
        self._name, self._looked = kept, time.monotonic()

    async def _make(self) -> str:
        # Not in the second of the last removal, to which a name's time would be equal.
        wait = await self._last_removal() + 1 - time.time()
        if 0 < wait <= 1:
            await asyncio.sleep(wait)
        name = self._named(f"people{int(time.time()):08x}")
        secret = self._secret(name)
        add = self._admin.add_service_account
        await self._request(lambda: add(access_key=name, secret_key=secret, policy=_POLICY, description="people"))
        return name

    def _secret(self, name: str) -> str:
        """Return the secret of a key, which only the gateway's account can derive."""
        return self._derived(f"secret of {name}")[:40]

    def _named(self, begin: str) -> str:
        return f"{begin}{self._derived(begin)[:6]}"

    def _made(self, name: str) -> int | None:
        """Return the second when a key was made; None if it is not one of this account."""
        found = _NAME.fullmatch(name)
        return int(found[1], 16) if found and self._named(name[:14]) == name else None

    def _derived(self, text: str) -> str:
        return hmac.new(self.account[1].encode(), text.encode(), hashlib.sha256).hexdigest()

    @transaction
    def _last_removal(self, session: Session) -> int:
        """Return the second in which the last token of a removed person ended; 0 if nobody was removed."""
        # A person who was added later under the same name does not own it.
        owner = exists().where(and_(PersonRow.name == TokenRow.owner, PersonRow.created <= TokenRow.created))
        last: datetime | None = session.scalar(
            select(func.max(TokenRow.revoked)).where(TokenRow.kind == "person", ~owner)
        )
        return 0 if last is None else int(last.timestamp())

    async def _request(self, request: Callable[[], Any]) -> Any:
        return await to_thread.run_sync(self._translated, request)

    def _translated(self, request: Callable[[], Any]) -> Any:
        from minio.error import MinioAdminException
        from urllib3.exceptions import HTTPError

        try:
            return request()
        except HTTPError as error:
            raise UnreachableError(
                f"The object store at {self.endpoint} does not answer ({type(error).__name__}); start it: `make up`."
            ) from error
        except MinioAdminException as error:
            status = int(error._code)
            if status == 404:  # deleted meanwhile
                return None
            if status >= 500:
                raise UnreachableError(
                    f"The object store at {self.endpoint} is not ready ({status}); wait, or see its log."
                ) from error
            if status in (401, 403):
                raise AccessError(
                    f"The object store at {self.endpoint} rejects the gateway's account ({status}); `make up` sets its "
                    "password and rights again."
                ) from error
            raise StorageError(f"The object store at {self.endpoint} rejects a key ({status}, {error}).") from error


def _connect(endpoint: str, key: str, secret: str) -> MinioAdmin:
    from minio.credentials import StaticProvider
    from minio.minioadmin import MinioAdmin
    from urllib3 import PoolManager, Retry, Timeout

    address = urlsplit(endpoint)
    # A connection that was idle may be closed when it is used again.
    pool = PoolManager(timeout=Timeout(**_TIMEOUTS), retries=Retry(total=1, backoff_factor=0), maxsize=2)
    credentials, secure = StaticProvider(key, secret), address.scheme == "https"
    return MinioAdmin(endpoint=address.netloc, credentials=credentials, secure=secure, http_client=pool)
