"""Clients of the S3 server, and translation of its errors into the platform's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlplatform.errors import AccessError, SettingsError, StorageError, UnreachableError
from mlplatform.files import progress
from mlplatform.settings.environment import environment
from mlplatform.settings.job import settings
from mlplatform.storage.addresses import split_uri

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from pyarrow.fs import FileSystem


_CONNECT_SECONDS = 3

_READ_SECONDS = 10

_BULK_READ_SECONDS = 60

_BULK_ATTEMPTS = 5

PARTS_PER_FILE = 4
"""Parts of a large file that a client for bulk transfers moves at the same time; checkpoints use boto3's default."""

FINAL_CODES = ("AccessDenied", "NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch")
"""S3 error codes that retrying does not fix."""

_FULL = 507
"""HTTP status of a server whose disk is full (RFC 4918, Insufficient Storage); servers have different codes for it."""

WITHOUT_VERSIONS = ("NotImplemented", "MethodNotAllowed", "VersioningNotConfigured")
"""S3 error codes with which servers without versions answer questions about them; the last one is versitygw's."""

_making = threading.Lock()


def s3_client(guard: Callable[..., None] | None = None, *, bulk: bool = False) -> S3Client:
    """Return the client of the settings' S3 server, shared by all threads.

    Args:
        guard: called before each of the two requests that make a file appear; raises to keep it from appearing.
        bulk: for many or large files; its requests wait longer and are repeated more often.
    """
    known = settings()
    # One for all threads: creating one takes 0.3 s of CPU time, and creating forty at once made a process unresponsive.
    with _making:
        return _client(known.s3_endpoint, known.s3_region, known.s3_credentials, guard, bulk)


def arrow_filesystem(uri: str) -> tuple[FileSystem, str]:
    """Return pyarrow's file system of an address and the path in it, as `FileSystem.from_uri` does.

    On S3 it uploads in the calling thread. By default pyarrow hands each write to its 8 I/O threads. `copy_files`
    closes files in the same threads, and ours are written when they are closed: with 8 or more at once, each would wait
    for a thread indefinitely.
    """
    from pyarrow.fs import FileSystem, S3FileSystem, resolve_s3_region

    if not uri.startswith("s3://"):
        files, path = FileSystem.from_uri(uri)
        return files, path
    bucket, prefix = split_uri(uri)
    known = settings()
    # Amazon's servers reject requests for a bucket that are signed for another region; other servers have one region.
    region = known.s3_region if known.s3_endpoint else resolve_s3_region(bucket)
    files = S3FileSystem(endpoint_override=known.s3_endpoint, region=region, background_writes=False)
    return files, f"{bucket}/{prefix}".rstrip("/")


@cache
def _client(
    endpoint: str | None, region: str | None, credentials: Path | None, guard: Callable[..., None] | None, bulk: bool
) -> S3Client:
    import boto3
    from botocore.config import Config

    quick = Config(connect_timeout=_CONNECT_SECONDS, read_timeout=_READ_SECONDS, retries={"total_max_attempts": 2})
    patient = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_BULK_READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": _BULK_ATTEMPTS},
        max_pool_connections=progress.PARALLEL * PARTS_PER_FILE,
    )
    # Explicit, because boto3 prefers AWS_ENDPOINT_URL_S3, and reads the region from AWS_DEFAULT_REGION.
    made = boto3.session.Session(profile_name=_profile()).client(
        "s3", endpoint_url=endpoint, region_name=region, config=patient if bulk else quick
    )
    if guard:
        # A repeated request calls the guard again.
        for operation in ("PutObject", "CompleteMultipartUpload"):
            made.meta.events.register(f"before-send.s3.{operation}", guard)
    return made


def _profile() -> str | None:
    """Return the profile with the platform's account, so that AWS_PROFILE and AWS_ACCESS_KEY_ID have no effect.

    None in a job, which may choose another server and account by variables, and without a file of the platform.
    """
    from botocore.session import Session

    known = settings()
    profiles = Session().available_profiles if known.s3_credentials and not known.job_id else []
    return next((name for name in ("mlplatform", "default") if name in profiles), None)


def versioning(client: S3Client, bucket: str) -> str:
    """Return "Enabled" or "Suspended"; empty if the bucket never kept former versions, or its server has none."""
    from botocore.exceptions import ClientError

    try:
        return client.get_bucket_versioning(Bucket=bucket).get("Status", "")
    except ClientError as error:
        if error.response["Error"]["Code"] in WITHOUT_VERSIONS:
            return ""
        raise


@contextmanager
def s3_errors(uri: str) -> Iterator[None]:
    """Translate botocore's errors into the platform's own; the message names `uri`."""
    from botocore import exceptions

    try:
        yield
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
        raise AccessError(
            f"There are no credentials for {uri}; set AWS_SHARED_CREDENTIALS_FILE to a file with a key for {_server()}."
        ) from error
    except exceptions.ProfileNotFound as error:
        raise SettingsError(
            f"AWS_PROFILE is for other files than those in use ({error}); unset or correct it."
        ) from error
    except exceptions.ClientError as error:
        raise _rejection(uri, _server(), error.response) from error
    except exceptions.BotoCoreError as error:
        raise UnreachableError(
            f"The storage at {_server()} does not answer ({error}); start it or correct AWS_ENDPOINT_URL."
        ) from error


def _server() -> str:
    """Return the S3 server's address: that of the settings, or of the AWS profile that `mlplatform login` writes."""
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    if address := settings().s3_endpoint:
        return address
    profile: dict[str, str] = {}
    with suppress(BotoCoreError):  # the error that is reported may be one of the profile
        profile = Session().get_scoped_config()
    return profile.get("endpoint_url", "Amazon S3")


def _account() -> str:
    """Return where the account is that was used, in the order in which boto3 looks."""
    file = "the file of AWS_SHARED_CREDENTIALS_FILE"
    if _profile():
        return file
    return next((name for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE") if name in environment()), file)


def _rejection(uri: str, server: str, response: Any) -> Exception:
    code = str(response.get("Error", {}).get("Code", "unknown"))
    if code == "NoSuchBucket":
        return StorageError(
            f"There is no bucket for {uri} at {server}; create it or correct MLPLATFORM_STORAGE or MLPLATFORM_DATASETS."
        )
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status == _FULL:
        return UnreachableError(
            f"{uri} cannot be written, because the disk of the storage at {server} is full: delete data there, or give "
            "it a larger disk."
        )
    if status >= 500:
        return UnreachableError(f"The storage at {server} is not ready ({status}, {code}); wait, or see its log.")
    if status in (401, 403):
        return AccessError(f"{server} rejects access to {uri} ({code}); check the key in {_account()}.")
    return StorageError(f"{server} cannot use {uri} ({code}); see the server's log.")
