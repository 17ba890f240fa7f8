"""Versions and quotas of MinIO's buckets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mlplatform.settings.storage import BUCKETS

if TYPE_CHECKING:
    from minio import Minio
    from minio.minioadmin import MinioAdmin

# Bucket with versions -> folders without. What is replaced or deleted there can be recovered, and a backup finds what
# the database named when the backup began. A job's log is rewritten about once per second while the job prints:
# versions would take hundreds of times its size.
VERSIONED: dict[str, list[str]] = {"mlflow-artifacts": [], "jobs": ["logs/"]}

KEEP_VERSIONS: list[dict[str, object]] = [
    {"Effect": "Deny", "Action": ["s3:DeleteObjectVersion"], "Resource": ["arn:aws:s3:::*"]}
]
"""Statements that keep an account that may delete objects from deleting their earlier versions."""


def set_versions(client: Minio, days: int) -> None:
    """Keep replaced and deleted objects of the versioned buckets for some days."""
    from minio.commonconfig import ENABLED, Filter
    from minio.lifecycleconfig import Expiration, LifecycleConfig, NoncurrentVersionExpiration, Rule
    from minio.versioningconfig import VersioningConfig

    rule = Rule(
        rule_id="versions",
        status=ENABLED,
        rule_filter=Filter(prefix=""),
        noncurrent_version_expiration=NoncurrentVersionExpiration(noncurrent_days=days),
        expiration=Expiration(expired_object_delete_marker=True),
    )
    for bucket, excluded in VERSIONED.items():
        config = VersioningConfig(ENABLED, excluded_prefixes=excluded)
        client.set_bucket_versioning(bucket_name=bucket, config=config)
        client.set_bucket_lifecycle(bucket_name=bucket, config=LifecycleConfig([rule]))


def set_quotas(admin: MinioAdmin, quotas: Mapping[str, int]) -> None:
    """Limit the buckets to some bytes each; those without a quota have no limit."""
    for bucket in BUCKETS:
        admin.bucket_quota_set(bucket, quotas.get(bucket, 0))
