"""Settings of the object store, and of the one-shot services that prepare, save and restore databases and buckets."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from mlplatform.settings.load import EnvironmentSettings
from mlplatform.settings.setting import Section, of_host, of_stack

BUCKETS = ("mlflow-artifacts", "ray", "datasets", "jobs")

_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def quotas_of(text: str) -> dict[str, int]:
    """Convert "ray=500g,datasets=2t" to bytes by bucket.

    Raises:
        ValueError: a part has another form, or names no bucket.
    """
    quotas = {}
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"([a-z-]+)=(\d+)([kmgt])b?", part.strip().lower())
        if not found or found[1] not in BUCKETS:
            raise ValueError(
                f"'{part}' is not a quota: write BUCKET=SIZE, as in ray=500g; buckets: {', '.join(BUCKETS)}"
            )
        quotas[found[1]] = int(found[2]) * _UNITS[found[3]]
    return quotas


class ObjectStore(Section):
    """Object store."""

    s3_endpoint_url: str = of_host("", pattern=r"^(https?://[^\s/@]+)?$")
    """Another S3 server instead of MinIO, such as https://s3.example.org, for a new stack. Its operator writes an
    account per role into secrets/s3_owner, s3_mlflow, s3_gateway, s3_jobs, s3_people and s3_backup, with the rights in
    docs/operating.md. MinIO is then not started, BUCKET_QUOTAS and DISK_RESERVE_GB do not apply to that server, and its
    region must be us-east-1."""

    # A string for the environment, which pydantic-settings would otherwise read as JSON.
    bucket_quotas: str = of_stack("")
    """Limits of buckets, such as ray=500g,datasets=2t; empty for none. MinIO counts every few minutes, so a bucket can
    grow a little beyond its limit. Buckets: mlflow-artifacts, ray (checkpoints), datasets, jobs (packages and logs)."""

    version_days: int = of_stack(7, ge=1)
    """Days for which artifacts, data sets and packages that were replaced or deleted can be recovered; they take space
    until then."""

    checkpoint_version_days: int = of_stack(1, ge=0)
    """Days for which checkpoints can be, 0 for none; `make prune` removes them earlier."""

    @field_validator("bucket_quotas")
    @classmethod
    def _readable_quotas(cls, value: str) -> str:
        quotas_of(value)
        return value


class StorageSettings(ObjectStore, EnvironmentSettings):
    """Settings of the services `storage-init`, `backup` and `restore`."""

    endpoint: str = Field(validation_alias="AWS_ENDPOINT_URL")
    """Address of the object store, be it the stack's own or S3_ENDPOINT_URL."""
