"""Access keys at MinIO, below an account that only the gateway holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from anyio import to_thread

from mlplatform.compat import minio_admin
from mlplatform.errors import AccessError, StorageError, UnreachableError

_T = TypeVar("_T")


class AccessKeys:
    """Access keys below an account of MinIO.

    Each method raises UnreachableError while MinIO is unavailable, AccessError if it rejects the account, and
    StorageError if it rejects the request. A key takes MinIO 0.12 s of CPU time, and this process 0.01 s.

    Args:
        endpoint: URL of MinIO.
        account: name and secret of the account.
    """

    def __init__(self, endpoint: str, account: tuple[str, str]) -> None:
        self._endpoint = endpoint
        self._account = account[0]
        self._admin = minio_admin.connect(endpoint, *account)

    async def add(self, key: str, secret: str, policy: dict[str, object], description: str) -> None:
        """Make a key; may be repeated.

        Args:
            key: its name, at most 20 characters.
            secret: its secret, at most 40 characters.
            policy: what it may do, at most 4096 bytes of JSON.
            description: text for lists, at most 256 bytes.
        """
        await self._request(lambda: minio_admin.add_key(self._admin, key, secret, policy, description))

    async def change(self, key: str, policy: dict[str, object], description: str) -> None:
        """Change what a key may do, with the arguments of `add`; StorageError if it does not exist."""
        await self._request(lambda: minio_admin.change_key(self._admin, key, policy, description))

    async def remove(self, key: str) -> None:
        """Delete a key; do nothing if it does not exist."""

        def request() -> None:
            from minio.error import MinioAdminException

            try:
                self._admin.delete_service_account(key)
            except MinioAdminException as error:
                if minio_admin.status_of(error) != 404:
                    raise

        await self._request(request)

    async def all(self) -> dict[str, str]:
        """Return the descriptions of all keys by name; takes 0.2 s of CPU time."""
        listed = await self._request(lambda: self._admin.list_service_account(self._account))
        return {found["accessKey"]: found.get("description", "") for found in json.loads(listed).get("accounts") or []}

    async def _request(self, request: Callable[[], _T]) -> _T:
        return await to_thread.run_sync(self._translated, request)

    def _translated(self, request: Callable[[], Any]) -> Any:
        from minio.error import MinioAdminException
        from urllib3.exceptions import HTTPError

        try:
            return request()
        except HTTPError as error:
            raise UnreachableError(
                f"MinIO at {self._endpoint} does not answer ({type(error).__name__}); start it: `make up`."
            ) from error
        except MinioAdminException as error:
            status, code = minio_admin.status_of(error), minio_admin.code_of(error)
            if status >= 500:
                raise UnreachableError(
                    f"MinIO at {self._endpoint} is not ready ({status}, {code}); wait, or see its log."
                ) from error
            if status in (401, 403):
                raise AccessError(
                    f"MinIO at {self._endpoint} rejects the account {self._account} ({code}); `make up` sets its "
                    "password and rights again."
                ) from error
            raise StorageError(f"MinIO at {self._endpoint} rejects an access key ({status}, {code}).") from error
