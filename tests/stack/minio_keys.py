"""Checks of access keys at MinIO."""

from __future__ import annotations

import secrets

import pytest
from host import Stack
from minio.credentials import StaticProvider
from minio.error import MinioAdminException
from minio.minioadmin import MinioAdmin

from mlplatform.credentials import read_s3_account


def administers_nothing(stack: Stack, key: str, secret: str, account: str) -> None:
    """Try requests of administrators with a key that was made below an account; each must be refused."""
    admin = MinioAdmin(
        endpoint=f"127.0.0.1:{stack.settings.minio_port}", credentials=StaticProvider(key, secret), secure=False
    )
    parent, _ = read_s3_account(stack.root / f"secrets/minio_{account}")
    for request in (
        lambda: admin.add_service_account(),
        lambda: admin.add_service_account(access_key="tries-key", secret_key=secrets.token_hex(16)),
        lambda: admin.update_service_account(access_key=key, secret_key=secrets.token_hex(16)),
        lambda: admin.user_add(parent, secrets.token_hex(16)),
        lambda: admin.policy_set("person", user=parent),
        lambda: admin.user_list(),
    ):
        with pytest.raises(MinioAdminException, match="Status: 403"):
            request()
