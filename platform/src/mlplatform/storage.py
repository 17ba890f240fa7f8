"""Where checkpoints lie: an S3 bucket or a folder, one sub-folder a job."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mlplatform.errors import AccessError, SettingsError, StorageError, UnreachableError
from mlplatform.folders import files_below
from mlplatform.settings import settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from pyarrow.fs import FileSystem

_CONNECT_SECONDS = 3
_READ_SECONDS = 10
_FINAL = ("AccessDenied", "NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch")
"""S3's codes of what does not pass by itself."""


def checkpoint_uri(name: str = "", job_id: str | None = None) -> str:
    """Address of a job's checkpoints: `<storage>/<job id>/<name>`, an `s3://` URI or an absolute folder.

    Args:
        name: a training run within the job; empty for the job's own folder.
        job_id: of another job; None means the one that this process belongs to.

    Raises:
        SettingsError: MLPLATFORM_STORAGE is neither an S3 URI nor an absolute folder.
    """
    root = settings().storage.rstrip("/")
    parts = urlsplit(root)
    if not (parts.scheme == "s3" and parts.netloc) and not Path(root).is_absolute():
        raise SettingsError(f"MLPLATFORM_STORAGE={root!r} is neither s3://bucket nor an absolute folder; set it so.")
    return "/".join(part for part in (root, job_id or settings().job_id or _outside_of_jobs(), name) if part)


def filesystem(uri: str) -> tuple[FileSystem, str]:
    """The pyarrow file system of an address and the path in it; one on S3 waits while its server is away.

    What is written through it raises FencedError once a later attempt of this job has been started.
    """
    from pyarrow.fs import FileSystem

    from mlplatform import fence
    from mlplatform.retrying import retrying

    files, path = FileSystem.from_uri(uri)
    # A folder as it is where no attempt is ever replaced: Ray reads checkpoints in place, without a copy, from that.
    return (retrying(files), path) if uri.startswith("s3://") or fence.applies() else (files, path)


def upload(folder: Path, uri: str) -> None:
    """Upload the files below a folder to S3, large ones in parallel parts; waits while the server is away.

    Raises:
        AccessError, StorageError: the server refuses.
        FencedError: a later attempt of this job was started, so no more of the files appears.
    """
    from boto3.exceptions import S3UploadFailedError

    from mlplatform import fence
    from mlplatform.retrying import retry

    bucket, prefix = _split(uri)
    client = _s3()

    def passes(error: Exception) -> bool:
        refused = isinstance(error, S3UploadFailedError) and any(code in str(error) for code in _FINAL)
        return isinstance(error, UnreachableError | S3UploadFailedError) and not refused

    def send(file: Path) -> None:
        fence.check()
        with _s3_errors(uri):
            client.upload_file(str(file), bucket, f"{prefix}{file.relative_to(folder).as_posix()}")

    for file in sorted(files_below(folder)):
        retry(partial(send, file), passes)


def check_writable(uri: str) -> None:
    """Write, and remove, a small object below `uri`, so that a job fails before its training and not after.

    Raises:
        UnreachableError: no S3 server answers.
        AccessError: the server refuses the credentials.
        StorageError: the bucket is missing, or the folder cannot be written.
    """
    probe = f".probe-{uuid.uuid4().hex}"
    if uri.startswith("s3://"):
        bucket, prefix = _split(uri)
        with _s3_errors(uri):
            client = _s3()
            client.put_object(Bucket=bucket, Key=f"{prefix}{probe}", Body=b"")
            client.delete_object(Bucket=bucket, Key=f"{prefix}{probe}")
        return
    try:
        Path(uri).mkdir(parents=True, exist_ok=True)
        (Path(uri) / probe).touch()
        (Path(uri) / probe).unlink()
    except OSError as error:
        raise StorageError(
            f"The storage folder {uri} cannot be written ({error.strerror}); make it so or set MLPLATFORM_STORAGE."
        ) from error


def write_text(uri: str, text: str) -> None:
    """Write a small file, at once as a whole.

    Raises:
        UnreachableError, AccessError, StorageError: as `check_writable`.
    """
    if uri.startswith("s3://"):
        bucket, key = _split(uri)
        with _s3_errors(uri):
            _s3().put_object(Bucket=bucket, Key=key.rstrip("/"), Body=text.encode())
        return
    draft = Path(f"{uri}.{uuid.uuid4().hex}")
    try:
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text)
        draft.replace(uri)
    except OSError as error:
        raise StorageError(f"{uri} cannot be written ({error.strerror}); make its folder writable.") from error


def delete_file(uri: str) -> None:
    """Remove a file; nothing happens where there is none.

    Raises:
        UnreachableError, AccessError, StorageError: as `check_writable`.
    """
    if uri.startswith("s3://"):
        bucket, key = _split(uri)
        with _s3_errors(uri):
            _s3().delete_object(Bucket=bucket, Key=key.rstrip("/"))
        return
    try:
        Path(uri).unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{uri} cannot be removed ({error.strerror}); make its folder writable.") from error


def list_files(uri: str) -> list[str]:
    """Addresses of all files below `uri`, sorted; empty when there are none.

    Raises:
        UnreachableError, AccessError, StorageError: as `check_writable`.
    """
    if not uri.startswith("s3://"):
        return sorted(str(path) for path in Path(uri).rglob("*") if path.is_file())
    bucket, prefix = _split(uri)
    with _s3_errors(uri):
        pages = _s3().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return sorted(f"s3://{bucket}/{item['Key']}" for page in pages for item in page.get("Contents", []))


@cache
def _outside_of_jobs() -> str:
    """Stands in for the job's id in a process that is no job (a notebook, a terminal); one a process."""
    return f"{settings().user}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:4]}"


def _split(uri: str) -> tuple[str, str]:
    """Bucket and key prefix, the prefix ending in a slash unless it is empty."""
    parts = urlsplit(uri)
    prefix = parts.path.strip("/")
    return parts.netloc, f"{prefix}/" if prefix else ""


def prepare() -> None:
    """Import and connect what `upload` needs, 1 s of a core, before a training would wait for it."""
    _s3()


def _s3() -> S3Client:
    known = settings()
    return _client(known.s3_endpoint, known.s3_region, known.s3_credentials)


@cache
def _client(endpoint: str | None, region: str | None, credentials: Path | None) -> S3Client:
    """One client for each place; threads may share it."""
    import boto3
    from botocore.config import Config

    # All three come from the AWS_* variables, which boto3 reads by itself.
    made = boto3.session.Session().client(
        "s3",
        config=Config(connect_timeout=_CONNECT_SECONDS, read_timeout=_READ_SECONDS, retries={"total_max_attempts": 2}),
    )
    # The two requests that make a file appear; a repeated one asks again.
    for operation in ("PutObject", "CompleteMultipartUpload"):
        made.meta.events.register(f"before-send.s3.{operation}", _check_fence)
    return made


def _check_fence(**_: Any) -> None:
    from mlplatform import fence

    fence.check()


@contextmanager
def _s3_errors(uri: str) -> Iterator[None]:
    from botocore import exceptions

    server = settings().s3_endpoint or "Amazon S3"
    try:
        yield
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
        raise AccessError(
            f"There are no credentials for {uri}; let AWS_SHARED_CREDENTIALS_FILE name a file with a key for {server}."
        ) from error
    except exceptions.ClientError as error:
        raise _refusal(uri, server, error.response) from error
    except exceptions.BotoCoreError as error:
        raise UnreachableError(
            f"The storage at {server} does not answer ({error}); start it or correct AWS_ENDPOINT_URL."
        ) from error


def _refusal(uri: str, server: str, response: Any) -> Exception:
    code = str(response.get("Error", {}).get("Code", "unknown"))
    if code == "NoSuchBucket":
        return StorageError(
            f"There is no bucket for {uri} at {server}; create it or correct MLPLATFORM_STORAGE or MLPLATFORM_DATASETS."
        )
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status >= 500:
        return UnreachableError(f"The storage at {server} is not ready ({status}, {code}); wait, or see its log.")
    if status in (401, 403):
        return AccessError(
            f"{server} refuses access to {uri} ({code}); check the key in the file of AWS_SHARED_CREDENTIALS_FILE."
        )
    return StorageError(f"{server} cannot use {uri} ({code}); see the server's log.")
