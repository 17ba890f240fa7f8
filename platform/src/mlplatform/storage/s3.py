"""The S3 client, and its errors as the platform's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlplatform.errors import AccessError, StorageError, UnreachableError
from mlplatform.settings.job import settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


CONNECT_SECONDS = 3

_READ_SECONDS = 10

FINAL_CODES = ("AccessDenied", "NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch")
"""S3's codes of what does not pass by itself."""


def s3_client(guard: Callable[..., None] | None = None) -> S3Client:
    """The client of the settings' S3 server, shared by all threads.

    Args:
        guard: called before each of the two requests that make a file appear; raises to keep it from appearing.
    """
    known = settings()
    return _client(known.s3_endpoint, known.s3_region, known.s3_credentials, guard)


@cache
def _client(
    endpoint: str | None, region: str | None, credentials: Path | None, guard: Callable[..., None] | None
) -> S3Client:
    import boto3
    from botocore.config import Config

    # All three come from the AWS_* variables, which boto3 reads by itself.
    made = boto3.session.Session().client(
        "s3",
        config=Config(connect_timeout=CONNECT_SECONDS, read_timeout=_READ_SECONDS, retries={"total_max_attempts": 2}),
    )
    if guard:
        # The two requests that make a file appear; a repeated one asks again.
        for operation in ("PutObject", "CompleteMultipartUpload"):
            made.meta.events.register(f"before-send.s3.{operation}", guard)
    return made


@contextmanager
def s3_errors(uri: str) -> Iterator[None]:
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
