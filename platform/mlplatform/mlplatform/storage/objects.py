"""Files by key below an address, which is an S3 bucket or a folder."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mlplatform.errors import SettingsError, StorageError
from mlplatform.files import atomic
from mlplatform.storage import s3
from mlplatform.storage.addresses import checkpoint_uri, split_uri

if TYPE_CHECKING:
    from boto3.s3.transfer import TransferConfig
    from mypy_boto3_s3 import S3Client


Add = Callable[[int], None]
"""Callback that gets the number of bytes moved since its last call."""

_PART_BYTES = 16 << 20

_DELETED_AT_ONCE = 1000
"""Objects that S3 deletes with one request at most."""

_VARIABLE = "MLPLATFORM_STORAGE"

_PROBE = f".probe-{uuid.uuid4().hex}"
"""One name per process, so that two processes do not remove each other's file."""


@dataclass(frozen=True)
class Entry:
    """A file in a listing."""

    key: str
    size: int
    modified: datetime


class ObjectStore(Protocol):
    """Files by key; a file appears whole or not at all.

    Each method raises UnreachableError (the S3 server does not answer), AccessError (it rejects the credentials) or
    StorageError (the bucket is missing, a file or folder cannot be used).
    """

    uri: str

    def check_writable(self) -> None:
        """Write, and remove, an empty file."""

    def find(self, prefix: str) -> list[Entry]:
        """List the files whose key begins with `prefix`."""

    def read(self, key: str) -> str:
        """Read a small text."""

    def write(self, key: str, text: str) -> None:
        """Write a small text."""

    def delete(self, key: str) -> None:
        """Remove a file; do nothing if there is none."""

    def former(self, prefix: str = "") -> list[Entry]:
        """List what the storage keeps of replaced and deleted files below `prefix`, with the marks of deletions."""

    def forget(self, prefix: str) -> None:
        """Remove what `former` lists, so that it cannot be recovered any more."""

    def upload(self, path: Path, key: str, add: Add) -> None:
        """Copy a local file here."""

    def download(self, key: str, path: Path, add: Add) -> None:
        """Copy a file to a local path."""


def open_store(uri: str, variable: str = _VARIABLE, *, bulk: bool = True) -> ObjectStore:
    """Open the files below `uri`, the value of the setting `variable`.

    Args:
        bulk: many or large files, whose requests are repeated for a minute; otherwise an outage is raised in seconds.

    Raises:
        SettingsError: it is neither an S3 URI nor an absolute folder.
    """
    if uri.startswith("s3://") and len(uri) > len("s3://"):
        return S3Store(uri.rstrip("/"), bulk=bulk)
    if Path(uri).is_absolute():
        return FolderStore(uri.rstrip("/"), variable)
    raise SettingsError(f"{variable}={uri!r} is neither s3://bucket nor an absolute folder; correct it.")


def of_job(job_id: str) -> ObjectStore:
    """Open the files of a job, for small ones."""
    return open_store(checkpoint_uri(job_id=job_id), bulk=False)


def check_writable(uri: str) -> None:
    """Write, and remove, an empty file below `uri`, so that a job fails before its training and not after it.

    Raises:
        UnreachableError, AccessError, StorageError: as the methods of `ObjectStore`.
    """
    open_store(uri, bulk=False).check_writable()


def list_files(uri: str) -> list[str]:
    """Return the addresses of all files below `uri`, sorted; empty if there are none.

    Raises:
        UnreachableError, AccessError, StorageError: as the methods of `ObjectStore`.
    """
    store = open_store(uri, bulk=False)
    return sorted(f"{store.uri}/{entry.key}" for entry in store.find(""))


class S3Store:
    """Objects of a bucket, on any S3 server; large ones are moved in parallel parts."""

    def __init__(self, uri: str, *, bulk: bool = True) -> None:
        self.uri = uri
        self._bucket, self._prefix = split_uri(uri)
        self._bulk = bulk

    def check_writable(self) -> None:
        with s3.s3_errors(self.uri):
            for request in (self._client.put_object, self._client.delete_object):
                request(Bucket=self._bucket, Key=f"{self._prefix}{_PROBE}")

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

    def former(self, prefix: str = "") -> list[Entry]:
        versions, marks = self._former(prefix)
        return [
            Entry(item["Key"].removeprefix(self._prefix), item.get("Size", 0), item["LastModified"])
            for item in (*versions, *marks)
        ]

    def forget(self, prefix: str) -> None:
        # Marks last: without its mark, the newest version of a deleted file would be the file again.
        for found in self._former(prefix):
            for start in range(0, len(found), _DELETED_AT_ONCE):
                doomed: list[Any] = [
                    {"Key": item["Key"], "VersionId": item["VersionId"]}
                    for item in found[start : start + _DELETED_AT_ONCE]
                ]
                with s3.s3_errors(self.uri):
                    answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": doomed, "Quiet": True})
                if errors := answer.get("Errors"):
                    raise StorageError(f"Former versions in {self.uri} cannot be removed ({errors[0].get('Code')}).")

    def _former(self, prefix: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the versions that are not the present ones, and the marks of deletions; none without versions."""
        versions: list[dict[str, Any]] = []
        marks: list[dict[str, Any]] = []
        with s3.s3_errors(self.uri):
            if not s3.versioning(self._client, self._bucket):
                return versions, marks
            pages = self._client.get_paginator("list_object_versions").paginate(
                Bucket=self._bucket, Prefix=f"{self._prefix}{prefix}"
            )
            for page in pages:
                versions += [dict(item) for item in page.get("Versions", []) if not item["IsLatest"]]
                marks += [dict(item) for item in page.get("DeleteMarkers", [])]
        return versions, marks

    def upload(self, path: Path, key: str, add: Add) -> None:
        from boto3.exceptions import S3UploadFailedError

        with s3.s3_errors(f"{self.uri}/{key}"):
            try:
                self._client.upload_file(
                    str(path), self._bucket, f"{self._prefix}{key}", Callback=add, Config=self._parts()
                )
            except S3UploadFailedError as error:
                # boto3 hides the server's answer, which tells whether the key, the bucket or the server is the problem.
                raise (error.__context__ or error) from None

    def download(self, key: str, path: Path, add: Add) -> None:
        with s3.s3_errors(f"{self.uri}/{key}"):
            self._client.download_file(
                self._bucket, f"{self._prefix}{key}", str(path), Callback=add, Config=self._parts()
            )

    @property
    def _client(self) -> S3Client:
        return s3.s3_client(bulk=self._bulk)

    def _parts(self) -> TransferConfig:
        from boto3.s3.transfer import TransferConfig

        return TransferConfig(
            multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES, max_concurrency=s3.PARTS_PER_FILE
        )


class FolderStore:
    """Files of a folder."""

    def __init__(self, uri: str, variable: str = _VARIABLE) -> None:
        self.uri = uri
        self._root = Path(uri)
        self._variable = variable

    def check_writable(self) -> None:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            (self._root / _PROBE).touch()
            (self._root / _PROBE).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"The folder {self.uri} cannot be written ({error.strerror}); make it writable or set {self._variable} "
                "to another."
            ) from error

    def find(self, prefix: str) -> list[Entry]:
        folder = self._root / prefix
        return [
            Entry(
                path.relative_to(self._root).as_posix(),
                path.stat().st_size,
                datetime.fromtimestamp(path.stat().st_mtime, UTC),
            )
            for path in ([folder] if folder.is_file() else sorted(folder.rglob("*")))
            if path.is_file() and not path.name.startswith(atomic.DRAFT)
        ]

    def read(self, key: str) -> str:
        with self._errors("read", key) as path:
            return path.read_text()

    def write(self, key: str, text: str) -> None:
        with self._new(key) as draft:
            draft.write_text(text)

    def delete(self, key: str) -> None:
        with self._errors("removed", key) as path:
            path.unlink(missing_ok=True)

    def former(self, prefix: str = "") -> list[Entry]:
        return []

    def forget(self, prefix: str) -> None:
        pass

    def upload(self, path: Path, key: str, add: Add) -> None:
        with self._new(key) as draft:
            shutil.copyfile(path, draft)
        add(path.stat().st_size)

    def download(self, key: str, path: Path, add: Add) -> None:
        with self._errors("read", key) as source:
            shutil.copyfile(source, path)
        add(path.stat().st_size)

    @contextmanager
    def _new(self, key: str) -> Iterator[Path]:
        with self._errors("written", key) as path:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic.new_file(path) as draft:
                yield draft

    @contextmanager
    def _errors(self, verb: str, key: str) -> Iterator[Path]:
        path = self._root / key
        try:
            yield path
        except OSError as error:
            raise StorageError(
                f"The file {path} cannot be {verb} ({error.strerror}); check the folder or {self._variable}."
            ) from error
