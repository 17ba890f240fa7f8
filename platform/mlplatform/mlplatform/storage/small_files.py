"""Small texts beside a job's checkpoints, read with pyarrow.

Ray has loaded pyarrow already; importing boto3 beside a training would take 1 s of CPU time.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING

from mlplatform.compat.pyarrow import is_outage
from mlplatform.errors import StorageError, UnreachableError
from mlplatform.settings.job import settings
from mlplatform.storage.addresses import split_uri
from mlplatform.storage.retry import retry
from mlplatform.storage.s3 import arrow_filesystem

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


def read_text(uri: str) -> str | None:
    """Return the text at an address; None if there is none.

    Raises:
        OSError: the storage is unavailable or rejects the request.
    """
    files, path = _place(uri)
    try:
        with files.open_input_stream(path) as stream:
            return str(stream.read().decode())
    except FileNotFoundError:
        return None


def answer(uri: str, question: str, *, wait: bool = False) -> str | None:
    """Return the text at an address; None if there is none.

    Args:
        uri: the address.
        question: what it tells, for errors: the end of "Cannot read from URI ...".
        wait: retry for up to ten minutes while the storage is unavailable.

    Raises:
        UnreachableError: the storage does not answer.
        StorageError: the file cannot be read.
    """
    try:
        return retry(lambda: read_text(uri)) if wait else read_text(uri)
    except OSError as error:
        kind = UnreachableError if is_outage(error) else StorageError
        raise kind(f"Cannot read from {uri} {question} ({error}); check the storage.") from error


def modified(uri: str) -> datetime | None:
    """Return when the file at an address was written, by the clock of the storage; None if there is none.

    Raises:
        OSError: the storage is unavailable or rejects the request.
    """
    files, path = _place(uri)
    found: datetime | None = files.get_file_info(path).mtime
    return found


def _place(uri: str) -> tuple[FileSystem, str]:
    root = f"s3://{split_uri(uri)[0]}" if uri.startswith("s3://") else "/"
    return _files(root, settings().s3_endpoint), uri.removeprefix("s3://")


@cache
def _files(root: str, endpoint: str | None) -> FileSystem:
    """Return the file system of a bucket or of this machine; its first request takes 80 ms, later ones 2 ms.

    Args:
        root: address of the bucket, or "/".
        endpoint: of the settings; another one is another file system.
    """
    return arrow_filesystem(root)[0]
