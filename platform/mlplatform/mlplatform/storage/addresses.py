"""Addresses of checkpoints: an S3 bucket or a folder, with one sub-folder per job."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from mlplatform.errors import SettingsError
from mlplatform.settings.job import settings


def checkpoint_uri(name: str = "", job_id: str | None = None) -> str:
    """Return the address of a job's checkpoints: `<storage>/<job id>/<name>`, an `s3://` URI or an absolute folder.

    Args:
        name: training run within the job; empty for the job's own folder.
        job_id: id of another job; None means the one that this process belongs to.

    Raises:
        SettingsError: MLPLATFORM_STORAGE is neither an S3 URI nor an absolute folder.
    """
    root = settings().storage.rstrip("/")
    parts = urlsplit(root)
    if not (parts.scheme == "s3" and parts.netloc) and not Path(root).is_absolute():
        raise SettingsError(f"MLPLATFORM_STORAGE={root!r} is neither s3://bucket nor an absolute folder; correct it.")
    return "/".join(part for part in (root, job_id or settings().job_id or _outside_of_jobs(), name) if part)


@cache
def _outside_of_jobs() -> str:
    """Return the substitute for a job's id in a process outside of jobs (a notebook, a terminal); one per process."""
    return f"{settings().user}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:4]}"


def split_uri(uri: str) -> tuple[str, str]:
    """Split an S3 URI into bucket and key prefix, the prefix ending in a slash unless it is empty."""
    parts = urlsplit(uri)
    prefix = parts.path.strip("/")
    return parts.netloc, f"{prefix}/" if prefix else ""
