"""Client of MinIO's access keys: repeated requests, and translated errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from ray_head import served
from stand_in_minio import ACCOUNT, SECRET, StandInMinio

from mlplatform.errors import AccessError, PlatformError, StorageError, UnreachableError
from mlplatform.gateway.upstream.access_keys import AccessKeys


@pytest.fixture
def minio() -> StandInMinio:
    return StandInMinio()


@pytest.fixture
def address(minio: StandInMinio) -> Iterator[str]:
    with served(minio.app) as found:
        yield found


def test_key_is_added_listed_and_removed_repeatedly(minio: StandInMinio, address: str) -> None:
    async def scenario() -> None:
        keys = AccessKeys(address, (ACCOUNT, SECRET))
        for _ in range(2):
            await keys.add("key", "secret", {"Version": "2012-10-17", "Statement": []}, "job mine, attempt 1")
        assert await keys.all() == {"key": "job mine, attempt 1"}
        for _ in range(2):
            await keys.remove("key")
        assert await keys.all() == {}

    asyncio.run(scenario())


def test_rights_of_key_are_changed(minio: StandInMinio, address: str) -> None:
    former: dict[str, object] = {"Version": "2012-10-17", "Statement": []}
    present: dict[str, object] = {"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Action": ["admin:*"]}]}

    async def scenario() -> None:
        keys = AccessKeys(address, (ACCOUNT, SECRET))
        await keys.add("key", "secret", former, "person alice")
        await keys.change("key", present, "person alice, changed")
        with pytest.raises(StorageError, match="XMinioInvalidIAMCredentials"):
            await keys.change("other", present, "")

    asyncio.run(scenario())
    assert minio.keys["key"]["policy"] == present
    assert minio.keys["key"]["description"] == "person alice, changed"
    assert minio.keys["key"]["secretKey"] == "secret"


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (503, "SlowDownWrite", UnreachableError),
        (403, "AccessDenied", AccessError),
        (400, "XMinioAdminInvalidAccessKey", StorageError),
    ],
)
def test_refusals_become_errors_of_the_platform(
    minio: StandInMinio, address: str, status: int, code: str, error: type[PlatformError]
) -> None:
    minio.status, minio.code = status, code
    keys = AccessKeys(address, (ACCOUNT, SECRET))
    with pytest.raises(error, match=code):
        asyncio.run(keys.add("key", "secret", {}, ""))


def test_wrong_account_is_named(address: str) -> None:
    with pytest.raises(AccessError, match="rejects the account other"):
        asyncio.run(AccessKeys(address, ("other", SECRET)).all())


def test_server_without_answer_is_unreachable(closed_port: int) -> None:
    with pytest.raises(UnreachableError, match="does not answer"):
        asyncio.run(AccessKeys(f"http://127.0.0.1:{closed_port}", (ACCOUNT, SECRET)).remove("key"))
