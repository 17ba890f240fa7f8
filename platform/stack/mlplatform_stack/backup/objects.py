"""Objects of the buckets as they were at one moment, and their restore.

While a backup runs, the buckets keep former versions of their objects. So it reads what existed at its moment, whatever
jobs overwrite or delete meanwhile, and a checkpoint fits to the state file that names it.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import groupby
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from mlplatform.errors import StorageError
from mlplatform.storage.s3 import versioning
from mlplatform_stack.bootstrap.buckets import Versions, set_versioning

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_KEPT = ("ContentType", "ContentEncoding", "ContentDisposition", "ContentLanguage", "CacheControl", "Metadata")

_SMALL_BYTES = 1 << 20
"""Size up to which objects are moved in parallel; many checkpoints and artifacts are files of a few KiB."""

_PARALLEL = 8

_ATTEMPTS = 5

_NO_VERSION = "null"
"""Id of the one version of an object that is written while its bucket, or its folder, keeps none."""

_CURRENT = ""
"""Stands for whatever an object is when it is read, on a server without versions."""


@dataclass(frozen=True)
class Version:
    """A version of an object."""

    key: str
    id: str
    size: int


@contextmanager
def versions_kept(client: S3Client, buckets: Iterable[str], always: Mapping[str, Versions]) -> Iterator[None]:
    """Keep the former versions of objects; afterwards, buckets keep what they always do.

    A bucket may keep them because an earlier backup was killed; nothing else would end that. The lifecycle rule of such
    a bucket (`bootstrap.buckets`) removes what was kept.

    Args:
        client: of an account that may set this for the bucket `ray`, and for others that do not always keep versions.
        buckets: their names.
        always: what buckets always keep.
    """
    with ExitStack() as restored:
        for name in buckets:
            rule = always.get(name)
            if rule and not rule.whole_backup and keeps_versions(client, name):
                continue
            status: Literal["Enabled", "Suspended"] = "Enabled" if rule else "Suspended"
            restored.callback(set_versioning, client, name, status, rule.excluded if rule else ())
            set_versioning(client, name, "Enabled")
        yield


def keeps_versions(client: S3Client, bucket: str) -> bool:
    """Return whether a bucket keeps the former versions of its objects."""
    return versioning(client, bucket) == "Enabled"


def as_they_are(client: S3Client, bucket: str) -> Iterator[Version]:
    """Yield each object of a bucket without versions; each is saved as it is when it is read."""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        yield from (Version(entry["Key"], _CURRENT, entry["Size"]) for entry in page.get("Contents", []))


def versions_at(
    client: S3Client, bucket: str, since: datetime, until: datetime, *, earliest: bool = False
) -> Iterator[Version]:
    """Yield the version of each object of a bucket that existed at `until`, or was deleted after `since`.

    Args:
        client: of the bucket's server.
        since: when the databases began to be read.
        until: when they had been read.
        earliest: take what existed at `since`, and from later only what is new. So a checkpoint is never ahead of
            the metrics in the database, which a job that resumes would not send again.
    """
    pages = client.get_paginator("list_object_versions").paginate(Bucket=bucket)
    for key, group in groupby(_in_order(pages), key=lambda entry: entry["Key"]):
        entries = list(group)
        found = _chosen(entries, since) if earliest else None
        found = found or _chosen(entries, until, since) or _unversioned(entries)
        if found:
            yield Version(str(key), found["VersionId"], found["Size"])


def _chosen(entries: list[dict[str, Any]], moment: datetime, since: datetime | None = None) -> dict[str, Any] | None:
    """Return the version at a moment, of an object that existed then or was deleted after `since`."""
    past = [entry for entry in entries if entry["LastModified"] <= moment]
    deleted = past and "Size" not in past[0]
    if deleted and (since is None or past[0]["LastModified"] < since):
        return None
    return next((entry for entry in past if "Size" in entry), None)


def _unversioned(entries: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return an object in a folder without versions, such as a log to which a job appends: as it is now."""
    newest = entries[0]
    return newest if newest["VersionId"] == _NO_VERSION and "Size" in newest else None


def _in_order(pages: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield versions and delete markers by key, newest first; a page may end in the middle of a key."""
    held: list[dict[str, Any]] = []
    for page in pages:
        held += [*page.get("DeleteMarkers", []), *page.get("Versions", [])]
        # Code points are in the order of UTF-8, which is that of S3.
        held.sort(key=lambda entry: (entry["LastModified"], entry["IsLatest"]), reverse=True)
        held.sort(key=lambda entry: entry["Key"])
        last = held[-1]["Key"] if held else ""
        yield from (entry for entry in held if entry["Key"] != last)
        held = [entry for entry in held if entry["Key"] == last]
    yield from held


class Body:
    """Contents of a version, which continues after an interrupted connection where it stopped."""

    def __init__(self, client: S3Client, bucket: str, version: Version) -> None:
        self._client, self._bucket, self._version = client, bucket, version
        self._position, self._failures = 0, 0
        answer: dict[str, Any] = dict(client.get_object(**self._address()))  # type: ignore[arg-type]
        self._stream, self._tag = answer["Body"], answer["ETag"]
        self.size: int = answer["ContentLength"]
        self.meta = {name: answer[name] for name in _KEPT if answer.get(name)}
        if answer.get("TagCount"):
            self.meta["Tags"] = client.get_object_tagging(**self._address())["TagSet"]  # type: ignore[arg-type]

    def _address(self) -> dict[str, str]:
        version = {"VersionId": self._version.id} if self._version.id != _CURRENT else {}
        return {"Bucket": self._bucket, "Key": self._version.key, **version}

    def read(self, size: int = -1) -> bytes:
        from botocore.exceptions import BotoCoreError, ClientError

        while True:
            try:
                chunk: bytes = self._stream.read(size if size >= 0 else None)
            except (BotoCoreError, OSError):
                self._failures += 1
                if self._failures >= _ATTEMPTS:
                    raise
                try:
                    rest = {**self._address(), "IfMatch": self._tag, "Range": f"bytes={self._position}-"}
                    again = self._client.get_object(**rest)
                except ClientError as error:
                    raise OSError(str(error)) from error
                self._stream = again["Body"]
                continue
            self._position += len(chunk)
            return chunk


def opened(client: S3Client, bucket: str, versions: Iterable[Version]) -> Iterator[tuple[Version, IO[bytes], Any]]:
    """Yield each version with its contents and metadata, in order; small ones are fetched in advance, in parallel."""
    with ThreadPoolExecutor(_PARALLEL) as pool:
        queue: deque[Callable[[], tuple[Version, IO[bytes], Any] | None]] = deque()
        for version in versions:
            fetch = partial(_fetched, client, bucket, version)
            # A large one is opened when it is its turn: the server would end a connection that nobody reads.
            queue.append(pool.submit(fetch).result if version.size <= _SMALL_BYTES else fetch)
            if len(queue) >= 2 * _PARALLEL and (found := queue.popleft()()):
                yield found
        while queue:
            if found := queue.popleft()():
                yield found


def _fetched(client: S3Client, bucket: str, version: Version) -> tuple[Version, IO[bytes], Any] | None:
    """Return a version with its size as it is now; None if it has no versions and was deleted meanwhile."""
    from botocore.exceptions import ClientError

    try:
        body = Body(client, bucket, version)
    except ClientError as error:
        if version.id in (_NO_VERSION, _CURRENT) and error.response["Error"]["Code"] in ("NoSuchKey", "NoSuchVersion"):
            return None
        raise
    content = io.BytesIO(body.read()) if body.size <= _SMALL_BYTES else cast("IO[bytes]", body)
    return replace(version, size=body.size), content, body.meta


def empty(client: S3Client, bucket: str) -> None:
    """Remove every object of a bucket, with all versions."""
    # A bucket that never had versions may be on a server that has none, and accepts no ids of them.
    pages: Iterable[Any] = (
        client.get_paginator("list_object_versions").paginate(Bucket=bucket)
        if versioning(client, bucket)
        else client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    )
    for page in pages:
        entries = [*page.get("Versions", []), *page.get("DeleteMarkers", []), *page.get("Contents", [])]
        if entries:
            doomed = [{name: entry[name] for name in ("Key", "VersionId") if name in entry} for entry in entries]
            answer = client.delete_objects(Bucket=bucket, Delete={"Objects": doomed, "Quiet": True})  # type: ignore[typeddict-item]
            if answer.get("Errors"):
                raise StorageError(f"Objects of the bucket {bucket} cannot be removed: {answer['Errors'][0]}.")


class Uploads:
    """Uploads of restored objects: small ones in parallel, large ones in the order of the backup."""

    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._pool = ThreadPoolExecutor(_PARALLEL)
        self._pending: deque[Future[None]] = deque()

    def add(self, meta: dict[str, Any], size: int, content: IO[bytes], done: Callable[[], None]) -> None:
        place = {"Bucket": meta["bucket"], "Key": meta["key"]}
        extra = {name: meta[name] for name in _KEPT if name in meta}
        if size <= _SMALL_BYTES:
            body = content.read(size)
            # S3 cannot tell a missing end of the body from a shorter object.
            if len(body) != size:
                raise StorageError(f"{meta['key']} ended after {len(body)} of {size} bytes; restore another backup.")
            self._pending.append(self._pool.submit(self._put, place, extra, body, meta.get("Tags")))
            if len(self._pending) > 2 * _PARALLEL:
                self._pending.popleft().result()
        else:
            self._put_large(place, extra, size, content)
            self._tag(place, meta.get("Tags"))
        done()

    def _put(self, place: dict[str, str], extra: dict[str, Any], body: bytes, tags: Any) -> None:
        self._client.put_object(**place, **extra, Body=body)  # type: ignore[arg-type]
        self._tag(place, tags)

    def _put_large(self, place: dict[str, str], extra: dict[str, Any], size: int, content: IO[bytes]) -> None:
        from boto3.s3.transfer import TransferConfig

        # S3 accepts 10,000 parts.
        config = TransferConfig(multipart_chunksize=max(16 << 20, size // 9000), max_concurrency=4)
        # A member of a streamed tar raises AttributeError when boto3 asks whether it is seekable.
        stream = SimpleNamespace(read=content.read)
        self._client.upload_fileobj(stream, **place, ExtraArgs=extra, Config=config)  # type: ignore[arg-type]

    def _tag(self, place: dict[str, str], tags: Any) -> None:
        if tags:
            self._client.put_object_tagging(Bucket=place["Bucket"], Key=place["Key"], Tagging={"TagSet": tags})

    def wait(self) -> None:
        """Wait for all uploads; raises the error of the first that failed."""
        try:
            while self._pending:
                self._pending.popleft().result()
        finally:
            self._pool.shutdown(cancel_futures=True)
