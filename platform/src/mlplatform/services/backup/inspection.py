"""State of databases and buckets, read with the account of backups, for `mlplatform doctor`."""

from __future__ import annotations

from typing import Any

from mlplatform.services.backup import databases
from mlplatform.services.buckets import versioned
from mlplatform.settings.storage import BUCKETS, StorageSettings
from mlplatform.storage.s3 import s3_client, s3_errors, versioning


def state() -> dict[str, Any]:
    """Return the revision of each database beside those of this version, and the versioning of each bucket.

    Returns:
        databases: name -> `found` (None without tables), `needed`, and `known`, false for another version's.
        buckets: name -> `versioning` (None if the bucket does not exist,
            `Unknown` if another server does not tell this account), and `versioned`, true if it must be on.
    """
    found, known = databases.revisions(), databases.known_revisions()
    heads, kept = databases.heads(), versioned(StorageSettings.load())
    return {
        "databases": {
            name: {"found": found.get(name), "needed": heads[name], "known": found.get(name) in {None, *known[name]}}
            for name in databases.DATABASES
        },
        "buckets": {name: {"versioning": _versioning(name), "versioned": name in kept} for name in BUCKETS},
    }


def _versioning(bucket: str) -> str | None:
    client = s3_client()
    with s3_errors(f"s3://{bucket}"):
        try:
            return versioning(client, bucket) or "Off"
        except client.exceptions.ClientError as error:
            code = error.response["Error"]["Code"]
            if code == "AccessDenied":
                return "Unknown"
            if code != "NoSuchBucket":
                raise
            return None
