"""Settings of the one-shot services that prepare, save and restore databases and buckets."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from mlplatform.settings.load import EnvironmentSettings

BUCKETS = ("mlflow-artifacts", "ray", "datasets", "jobs")

_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def bucket_quotas(text: object) -> dict[str, int]:
    """Convert "ray=500g,datasets=2t" to bytes by bucket.

    Raises:
        ValueError: a part has another form, or names no bucket.
    """
    quotas = {}
    for part in filter(None, str(text).split(",")):
        found = re.fullmatch(r"([a-z-]+)=(\d+)([kmgt])b?", part.strip().lower())
        if not found or found[1] not in BUCKETS:
            raise ValueError(
                f"'{part}' is not a quota: write BUCKET=SIZE, as in ray=500g; buckets: {', '.join(BUCKETS)}"
            )
        quotas[found[1]] = int(found[2]) * _UNITS[found[3]]
    return quotas


class StorageSettings(EnvironmentSettings):
    """Settings of the services `storage-init`, `backup` and `restore`."""

    endpoint: str = Field(validation_alias="AWS_ENDPOINT_URL")
    """Address of the object store."""

    external: str = Field("", validation_alias="MLPLATFORM_S3_EXTERNAL")
    """The same address if the server is of others, whose accounts are in files; empty for the stack's own."""

    # A string for the environment, which pydantic-settings would otherwise read as JSON.
    quotas: str = Field("", validation_alias="MLPLATFORM_BUCKET_QUOTAS")
    """Limits of buckets, as `bucket_quotas` reads them; empty for none."""

    version_days: int = Field(7, ge=1, validation_alias="MLPLATFORM_VERSION_DAYS")
    """Days for which replaced and deleted artifacts, data sets and packages are kept."""

    checkpoint_version_days: int = Field(1, ge=0, validation_alias="MLPLATFORM_CHECKPOINT_VERSION_DAYS")
    """Days for which replaced and deleted checkpoints are kept; 0 for none."""

    @field_validator("quotas")
    @classmethod
    def _readable(cls, value: str) -> str:
        bucket_quotas(value)
        return value
