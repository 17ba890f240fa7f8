"""Access keys and users that are not the platform's."""

from __future__ import annotations

from minio.credentials import StaticProvider
from minio.minioadmin import MinioAdmin
from ray_head import served
from stand_in_minio import ACCOUNT, SECRET, StandInMinio

from mlplatform.services.access_keys import foreign_keys


def test_keys_of_attempts_and_people_are_not_foreign() -> None:
    minio = StandInMinio(keys={"attempt": {}}, users={"people": ["token"], "person": ["hers"], "stranger": []})
    with served(minio.app) as address:
        provider = StaticProvider(ACCOUNT, SECRET)
        admin = MinioAdmin(endpoint=address.removeprefix("http://"), credentials=provider, secure=False)
        found = list(foreign_keys(admin, [ACCOUNT, "people", "person"], "root"))
    assert found == ["user stranger", "key hers of person"]
