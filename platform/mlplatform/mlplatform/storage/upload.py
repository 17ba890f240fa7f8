"""Uploads of checkpoint folders to S3."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlplatform.errors import UnreachableError
from mlplatform.files.walk import files_below
from mlplatform.storage import fence
from mlplatform.storage.addresses import split_uri
from mlplatform.storage.retry import retry
from mlplatform.storage.s3 import FINAL_CODES, s3_client, s3_errors

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def upload(folder: Path, uri: str) -> None:
    """Upload the files below a folder to S3, large ones in parallel parts; waits while the server is unavailable.

    Raises:
        AccessError, StorageError: the server rejects the request.
        FencedError: a later attempt of this job was started, so no further file appears.
    """
    from boto3.exceptions import S3UploadFailedError

    bucket, prefix = split_uri(uri)
    client = prepare()

    def is_transient(error: Exception) -> bool:
        refused = isinstance(error, S3UploadFailedError) and any(code in str(error) for code in FINAL_CODES)
        return isinstance(error, UnreachableError | S3UploadFailedError) and not refused

    def send(file: Path) -> None:
        fence.check()
        with s3_errors(uri):
            client.upload_file(str(file), bucket, f"{prefix}{file.relative_to(folder).as_posix()}")

    for file in sorted(files_below(folder)):
        retry(partial(send, file), is_transient)


def prepare() -> S3Client:
    """Import boto3 and create the client, which takes 1 s of CPU time, before training would have to wait for it."""
    return s3_client(_check_fence)


def _check_fence(**_: Any) -> None:
    fence.check()
