"""Files by key below an address, which is an S3 bucket or a folder; data sets lie in either."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mlplatform.errors import SettingsError, StorageError
from mlplatform.files import progress
from mlplatform.storage import addresses, s3
from mlplatform.storage.addresses import split_uri
from mlplatform.storage.s3 import s3_client, s3_errors

if TYPE_CHECKING:
    from boto3.s3.transfer import TransferConfig
    from mypy_boto3_s3 import S3Client


Add = Callable[[int], None]
"""Told how many more bytes were moved."""

_PART_BYTES = 16 << 20

_PARTS_A_FILE = 4

_READ_SECONDS = 60

_ATTEMPTS = 5


@dataclass(frozen=True)
class Entry:
    """A file as a listing shows it."""

    key: str
    size: int
    modified: datetime


class Store(Protocol):
    """Files by key; a file is there whole or not at all."""

    uri: str

    def find(self, prefix: str) -> list[Entry]: ...
    def read(self, key: str) -> str: ...
    def write(self, key: str, text: str) -> None: ...
    def delete(self, key: str) -> None: ...
    def upload(self, path: Path, key: str, add: Add) -> None: ...
    def download(self, key: str, path: Path, add: Add) -> None: ...


def open_store(uri: str, variable: str) -> Store:
    """The files below `uri`, which the setting `variable` has named.

    Raises:
        SettingsError: it is neither an S3 URI nor an absolute folder.
    """
    if uri.startswith("s3://") and len(uri) > len("s3://"):
        return S3Store(uri.rstrip("/"))
    if Path(uri).is_absolute():
        return FolderStore(uri.rstrip("/"))
    raise SettingsError(f"{variable}={uri!r} is neither s3://bucket nor an absolute folder; set it so.")


class S3Store:
    """Objects of a bucket, on any S3 server; large ones go in parallel parts."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._bucket, self._prefix = addresses.split_uri(uri)
        self._cached: S3Client | None = None
        self._making = threading.Lock()

    def find(self, prefix: str) -> list[Entry]:
        with s3.s3_errors(self.uri):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=f"{self._prefix}{prefix}"
            )
            return [
                Entry(item["Key"].removeprefix(self._prefix), item["Size"], item["LastModified"])
                for page in pages
                for item in page.get("Contents", [])
            ]

    def read(self, key: str) -> str:
        with s3.s3_errors(f"{self.uri}/{key}"):
            answer = self._client.get_object(Bucket=self._bucket, Key=f"{self._prefix}{key}")
            return answer["Body"].read().decode()

    def write(self, key: str, text: str) -> None:
        with s3.s3_errors(f"{self.uri}/{key}"):
            self._client.put_object(Bucket=self._bucket, Key=f"{self._prefix}{key}", Body=text.encode())

    def delete(self, key: str) -> None:
        with s3.s3_errors(f"{self.uri}/{key}"):
            self._client.delete_object(Bucket=self._bucket, Key=f"{self._prefix}{key}")

    def upload(self, path: Path, key: str, add: Add) -> None:
        from boto3.exceptions import S3UploadFailedError

        with s3.s3_errors(f"{self.uri}/{key}"):
            try:
                self._client.upload_file(
                    str(path), self._bucket, f"{self._prefix}{key}", Callback=add, Config=self._parts()
                )
            except S3UploadFailedError as error:
                # boto3 hides the server's answer, which says whether it is the key, the bucket or the server.
                raise (error.__context__ or error) from None

    def download(self, key: str, path: Path, add: Add) -> None:
        with s3.s3_errors(f"{self.uri}/{key}"):
            self._client.download_file(
                self._bucket, f"{self._prefix}{key}", str(path), Callback=add, Config=self._parts()
            )

    @property
    def _client(self) -> S3Client:
        # One for all threads: to make one takes 0.3 s of a core, and forty at once kept a whole process from answering.
        with self._making:
            return self._cached or self._connect()

    def _connect(self) -> S3Client:
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=s3.CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            max_pool_connections=progress.PARALLEL * _PARTS_A_FILE,
        )
        self._cached = boto3.session.Session().client("s3", config=config)
        return self._cached

    def _parts(self) -> TransferConfig:
        from boto3.s3.transfer import TransferConfig

        return TransferConfig(
            multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES, max_concurrency=_PARTS_A_FILE
        )


class FolderStore:
    """Files of a folder; each is written beside its place and renamed."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._root = Path(uri)

    def find(self, prefix: str) -> list[Entry]:
        folder = self._root / prefix
        return [
            Entry(path.relative_to(self._root).as_posix(), path.stat().st_size, _modified(path))
            for path in ([folder] if folder.is_file() else sorted(folder.rglob("*")))
            if path.is_file() and not path.name.startswith(".partial-")
        ]

    def read(self, key: str) -> str:
        try:
            return (self._root / key).read_text()
        except OSError as error:
            raise self._error(key, error) from error

    def write(self, key: str, text: str) -> None:
        self._place(key, lambda draft: draft.write_text(text))

    def delete(self, key: str) -> None:
        (self._root / key).unlink(missing_ok=True)

    def upload(self, path: Path, key: str, add: Add) -> None:
        self._place(key, lambda draft: shutil.copyfile(path, draft))
        add(path.stat().st_size)

    def download(self, key: str, path: Path, add: Add) -> None:
        try:
            shutil.copyfile(self._root / key, path)
        except OSError as error:
            raise self._error(key, error) from error
        add(path.stat().st_size)

    def _place(self, key: str, fill: Callable[[Path], object]) -> None:
        target = self._root / key
        draft = target.with_name(f".partial-{uuid.uuid4().hex}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fill(draft)
            draft.replace(target)
        except OSError as error:
            raise self._error(key, error) from error
        finally:
            draft.unlink(missing_ok=True)

    def _error(self, key: str, error: OSError) -> StorageError:
        return StorageError(f"The file {self._root / key} cannot be used ({error.strerror}); check the folder.")


def _modified(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def check_writable(uri: str) -> None:
    """Write, and remove, a small object below `uri`, so that a job fails before its training and not after.

    Raises:
        UnreachableError: no S3 server answers.
        AccessError: the server refuses the credentials.
        StorageError: the bucket is missing, or the folder cannot be written.
    """
    probe = f".probe-{uuid.uuid4().hex}"
    if uri.startswith("s3://"):
        bucket, prefix = split_uri(uri)
        with s3_errors(uri):
            client = s3_client()
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
        bucket, key = split_uri(uri)
        with s3_errors(uri):
            s3_client().put_object(Bucket=bucket, Key=key.rstrip("/"), Body=text.encode())
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
        bucket, key = split_uri(uri)
        with s3_errors(uri):
            s3_client().delete_object(Bucket=bucket, Key=key.rstrip("/"))
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
    bucket, prefix = split_uri(uri)
    with s3_errors(uri):
        pages = s3_client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return sorted(f"s3://{bucket}/{item['Key']}" for page in pages for item in page.get("Contents", []))
