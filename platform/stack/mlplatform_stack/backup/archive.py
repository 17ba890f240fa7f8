"""Format of a backup: one tar stream, which restic encrypts, verifies and keeps complete or not at all.

    mlplatform-backup.json         header: format, version, schemas of the databases, time
    databases/<name>               `pg_dump --format=custom`
    objects/<bucket>/<key>         an object; its metadata are in the member's PAX record `MLPLATFORM.meta`
    settings/env, secrets/<name>   settings; secrets only if they were asked for
    grafana/grafana.db, <volume>/<path>

Both directions stream: nothing is staged on the disk.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from mlplatform.errors import StorageError

FORMAT = 2
"""Version of the format, raised when an older program could no longer restore an archive."""

HEADER = "mlplatform-backup.json"

_META = "MLPLATFORM.meta"

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Header:
    """Description of a backup.

    Attributes:
        version: version of the platform that made it.
        created: time at which it was begun, ISO 8601.
        schemas: database -> revision of its tables.
        secrets: whether it contains the stack's secrets.
    """

    version: str
    created: str
    schemas: dict[str, str]
    secrets: bool = False


class Writer:
    """Writer of a backup to a stream."""

    def __init__(self, output: IO[bytes], header: Header) -> None:
        self._tar = tarfile.open(  # noqa: SIM115 closed by close()
            mode="w|", fileobj=output, format=tarfile.PAX_FORMAT, bufsize=_CHUNK_BYTES
        )
        self.add_bytes(HEADER, json.dumps({"format": FORMAT, **header.__dict__}, indent=1).encode())

    def add(self, name: str, size: int, source: IO[bytes], meta: dict[str, Any] | None = None) -> None:
        """Append a member of exactly `size` bytes.

        Raises:
            StorageError: the source ended early; the archive is incomplete and must be discarded.
        """
        info = tarfile.TarInfo(name)
        info.size = size
        if meta:
            info.pax_headers = {_META: json.dumps(meta, sort_keys=True)}
        try:
            self._tar.addfile(info, source)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StorageError(f"{name} could not be read to its end of {size} bytes ({error}); retry.") from error
        # tarfile remembers every member, which would take 1 KiB per object.
        self._tar.members = []  # type: ignore[attr-defined]

    def add_bytes(self, name: str, content: bytes, meta: dict[str, Any] | None = None) -> None:
        self.add(name, len(content), io.BytesIO(content), meta)

    def close(self) -> None:
        """Write what is still buffered, and the end of the archive."""
        self._tar.close()


@dataclass(frozen=True)
class Member:
    """A member of a backup; its content is readable until the next one is."""

    name: str
    size: int
    meta: dict[str, Any]
    content: IO[bytes]


@contextmanager
def reading(stream: IO[bytes], known: Mapping[str, set[str]]) -> Iterator[tuple[Header, Iterator[Member]]]:
    """Read the header of a backup from a stream; what the caller leaves unread of a member is skipped.

    Args:
        stream: the backup.
        known: revisions of each database that this version can restore.

    Raises:
        StorageError: the stream is not a backup, of a newer format or schema, or ends early.
    """
    problem = "This is not a backup of the platform ({}); name another one."
    try:
        with tarfile.open(mode="r|", fileobj=stream, bufsize=_CHUNK_BYTES) as tar:
            header = _read_header(tar)
            for database, revision in header.schemas.items():
                if revision not in known.get(database, set()):
                    raise StorageError(
                        f"The backup's database {database} has revision {revision} of version {header.version}, which "
                        "this version does not know; restore it with that version."
                    )
            problem = "The backup could not be read to its end ({}); restore another one."
            yield header, _members(tar)
    except tarfile.TarError as error:
        raise StorageError(problem.format(error)) from error


def _read_header(tar: tarfile.TarFile) -> Header:
    info = tar.next()
    file = tar.extractfile(info) if info and info.name == HEADER else None
    if file is None:
        found = repr(info.name) if info else "missing"
        raise StorageError(
            f"This is not a backup of the platform (its first member is {found}, not {HEADER!r}); name another one."
        )
    fields = json.loads(file.read())
    form = int(fields.pop("format"))
    if form != FORMAT:
        raise StorageError(
            f"The backup has format {form} of version {fields.get('version')}, and this version restores format "
            f"{FORMAT} only; use that version."
        )
    return Header(**fields)


def _members(tar: tarfile.TarFile) -> Iterator[Member]:
    while info := tar.next():
        file = tar.extractfile(info)
        if file is None:
            raise StorageError(f"The backup has a member {info.name!r} that is not a file; restore another one.")
        yield Member(info.name, info.size, json.loads(info.pax_headers.get(_META, "{}")), file)
        tar.members = []  # type: ignore[attr-defined]
