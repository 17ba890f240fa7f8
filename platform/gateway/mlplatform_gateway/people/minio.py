"""Access keys at MinIO, the stack's own object store: people share one, which the gateway makes and deletes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mlplatform.errors import AccessError, StorageError, UnreachableError

if TYPE_CHECKING:
    from minio.minioadmin import MinioAdmin

_KEY_OF_PEOPLE: dict[str, object] = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*"]},
        {"Effect": "Deny", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::jobs", "arn:aws:s3:::jobs/*"]},
        {"Effect": "Deny", "Action": ["s3:DeleteObjectVersion"], "Resource": ["arn:aws:s3:::*"]},
        {"Effect": "Deny", "Action": ["admin:*"]},
    ],
}
"""Rights of the key of people: those of the gateway's account, except for its own bucket, former versions, and keys."""


class AccessKeys:
    """Access keys below an account, which that account may list, make and delete without being an administrator.

    The account is its name and its secret.
    """

    def __init__(self, endpoint: str, account: tuple[str, str]) -> None:
        self._endpoint, self._account = endpoint, account[0]
        self._admin = _connect(endpoint, account)

    def names(self) -> list[str]:
        """Return the names of the keys.

        Raises:
            UnreachableError, AccessError, StorageError: as of all requests, no answer, or the account or key rejected.
        """
        listed = self._request(lambda: self._admin.list_service_account(self._account))
        return [str(key["accessKey"]) for key in json.loads(listed or "{}").get("accounts") or []]

    def add(self, name: str, secret: str) -> None:
        """Make a key with the rights of people."""
        add = self._admin.add_service_account
        self._request(lambda: add(access_key=name, secret_key=secret, policy=_KEY_OF_PEOPLE, description="people"))

    def delete(self, name: str) -> None:
        """Delete a key, if it exists."""
        self._request(lambda: self._admin.delete_service_account(name))

    def _request(self, request: Callable[[], Any]) -> Any:
        from minio.error import MinioAdminException
        from urllib3.exceptions import HTTPError

        server = f"The object store at {self._endpoint}"
        try:
            return request()
        except HTTPError as error:
            raise UnreachableError(
                f"{server} does not answer ({type(error).__name__}); start it: `make up`."
            ) from error
        except MinioAdminException as error:
            status = int(error._code)
            if status == 404:  # deleted meanwhile
                return None
            if status >= 500:
                raise UnreachableError(f"{server} is not ready ({status}); wait, or see its log.") from error
            if status in (401, 403):
                raise AccessError(
                    f"{server} rejects the gateway's account ({status}); `make up` sets its password and rights again."
                ) from error
            raise StorageError(f"{server} rejects a key ({status}, {error}).") from error


def _connect(endpoint: str, account: tuple[str, str]) -> MinioAdmin:
    from minio.credentials import StaticProvider
    from minio.minioadmin import MinioAdmin
    from urllib3 import PoolManager, Retry, Timeout

    address = urlsplit(endpoint)
    # A connection that was idle may be closed when it is used again.
    pool = PoolManager(timeout=Timeout(connect=3.0, read=60.0), retries=Retry(total=1, backoff_factor=0), maxsize=2)
    credentials, secure = StaticProvider(*account), address.scheme == "https"
    return MinioAdmin(endpoint=address.netloc, credentials=credentials, secure=secure, http_client=pool)
