"""Requests of MinIO's admin API for access keys, seen in minio 7.2.20 and MinIO of 2026-02-12.

The bodies of this API are encrypted with a key that is derived from the account's secret. `MinioAdmin` derives it by
Argon2id, which takes 0.1 s of CPU time and 64 MiB each time. MinIO also accepts PBKDF2 (`madmin-go`, encrypt.go, for
FIPS 140), which takes 5 ms; secrets of ours are random, so that neither can be guessed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any
from urllib.parse import urlsplit

_AES_GCM, _PBKDF2_AES_GCM = 0, b"\x02"
"""Algorithms by their number in an encrypted message; `minio.crypto` has no function for the second."""

_ROUNDS = 8192

_TIMEOUTS = {"connect": 3.0, "read": 10.0}
"""In seconds; those of `MinioAdmin` are five minutes."""

_TAKEN = "XMinioIAMServiceAccountNotAllowed"
"""MinIO's code for an access key that exists."""


def connect(endpoint: str, key: str, secret: str) -> Any:
    """Return a client for all threads, which keeps its connections."""
    from minio.credentials import StaticProvider
    from minio.minioadmin import MinioAdmin
    from urllib3 import PoolManager, Retry, Timeout

    address = urlsplit(endpoint)
    # A connection that was idle may be closed when it is used again.
    pool = PoolManager(timeout=Timeout(**_TIMEOUTS), retries=Retry(total=1, backoff_factor=0), maxsize=8)
    credentials, secure = StaticProvider(key, secret), address.scheme == "https"
    return MinioAdmin(endpoint=address.netloc, credentials=credentials, secure=secure, http_client=pool)


def add_key(admin: Any, key: str, secret: str, policy: dict[str, object], description: str) -> None:
    """Make an access key below the account of a client; do nothing if it exists.

    Unlike `MinioAdmin.add_service_account`, it does not decrypt the response, which repeats what was sent.

    Args:
        admin: client of the account.
        key: name of the new key, at most 20 characters.
        secret: secret of the new key, at most 40 characters.
        policy: what the key may do, of what the account may do; at most 4096 bytes.
        description: text that lists show, at most 256 bytes.

    Raises:
        minio.error.MinioAdminException: MinIO rejects the request.
        urllib3.exceptions.HTTPError: MinIO does not answer.
    """
    from minio.error import MinioAdminException
    from minio.minioadmin import _COMMAND

    body = {"accessKey": key, "secretKey": secret, "policy": policy, "description": description}
    encrypted = _encrypted(json.dumps(body).encode(), admin._provider.retrieve().secret_key)
    try:
        admin._url_open(method="PUT", command=_COMMAND.SERVICE_ACCOUNT_ADD, body=encrypted)
    except MinioAdminException as error:
        if code_of(error) != _TAKEN:
            raise


def change_key(admin: Any, key: str, policy: dict[str, object], description: str) -> None:
    """Change policy and description of an access key; MinIO would remove a policy that is not sent.

    Args:
        admin: client of an account that may change keys.
        key: name of the key.
        policy: as in `add_key`.
        description: as in `add_key`.

    Raises:
        minio.error.MinioAdminException: MinIO rejects the request, or the key does not exist.
        urllib3.exceptions.HTTPError: MinIO does not answer.
    """
    from minio.minioadmin import _COMMAND

    body = {"newPolicy": policy, "newDescription": description}
    encrypted = _encrypted(json.dumps(body).encode(), admin._provider.retrieve().secret_key)
    place = {"accessKey": key}
    admin._url_open(method="POST", command=_COMMAND.SERVICE_ACCOUNT_UPDATE, query_params=place, body=encrypted)


def status_of(error: Any) -> int:
    """Return the HTTP status of a MinioAdminException."""
    return int(error._code)


def code_of(error: Any) -> str:
    """Return MinIO's code in a MinioAdminException; empty if the response is not MinIO's."""
    found = re.search(r'"Code":"(\w+)"', error._body)
    return found[1] if found else ""


def _encrypted(payload: bytes, secret: str) -> bytes:
    """Return a message of one chunk, as `minio.crypto.encrypt` does for texts up to 16 KiB."""
    from minio import crypto

    salt, nonce = os.urandom(crypto._SALT_LEN), os.urandom(crypto._NONCE_LEN)
    key = hashlib.pbkdf2_hmac("sha256", secret.encode(), salt, _ROUNDS, 32)
    first = crypto._generate_additional_data(_AES_GCM, key, nonce + bytes(4))
    cipher = crypto._get_cipher(_AES_GCM, key, crypto._update_nonce_id(nonce, 1))
    cipher.update(crypto._mark_as_last(first))
    return b"".join((salt, _PBKDF2_AES_GCM, nonce, *cipher.encrypt_and_digest(payload)))
