"""Format of a backup: one tar stream whose first member describes it and whose last one lists all others.

    mlplatform-backup.json         header: format, version, schemas of the databases, time
    databases/<name>               `pg_dump --format=custom`
    objects/<bucket>/<key>         an object; its metadata are in the member's PAX record `MLPLATFORM.meta`
    settings/env, secrets/<name>   settings; secrets only if they were asked for
    grafana/grafana.db, workspace/<path>
    SHA256SUMS                     checksum and size of each member above, so that nothing can be missing or altered

A checksum covers the metadata and the contents of a member. Both directions stream: nothing is staged on the disk.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Self

from mlplatform.errors import StorageError

FORMAT = 1
"""Version of the format, raised when an older program could no longer restore an archive."""

HEADER, MANIFEST = "mlplatform-backup.json", "SHA256SUMS"

_META = "MLPLATFORM.meta"

_CHUNK_BYTES = 1 << 20

_SPOOL_BYTES = 16 << 20

_HEADER_BYTES = 1 << 20

_DAMAGE = "Use another backup; nothing was changed."


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


class Counted:
    """A reader that hashes and counts what passes through.

    Args:
        source: object with `read(size)`.
        meta: the member's metadata, which the checksum covers.
    """

    def __init__(self, source: IO[bytes], meta: str) -> None:
        self._source = source
        self._hash = hashlib.sha256(meta.encode() + b"\0")
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        try:
            chunk = self._source.read(size)
        except tarfile.TarError as error:
            raise StorageError(f"The backup is truncated or damaged ({error}). {_DAMAGE}") from error
        self._hash.update(chunk)
        self.count += len(chunk)
        return chunk

    def drain(self) -> None:
        while self.read(_CHUNK_BYTES):
            pass

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()


class Writer:
    """Writer of a backup to a stream; the archive is valid only after `close`."""

    def __init__(self, output: IO[bytes], header: Header) -> None:
        self._tar = tarfile.open(  # noqa: SIM115 closed by close()
            mode="w|", fileobj=output, format=tarfile.PAX_FORMAT, bufsize=_CHUNK_BYTES
        )
        self._lines = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115 closed by close()
        self.members, self.bytes = 0, 0
        self.add_bytes(HEADER, json.dumps({"format": FORMAT, **header.__dict__}, indent=1).encode())

    def add(self, name: str, size: int, source: IO[bytes], meta: dict[str, Any] | None = None) -> None:
        """Append a member of exactly `size` bytes.

        Raises:
            StorageError: the source ended early; the archive is incomplete and must be discarded.
        """
        text = json.dumps(meta, sort_keys=True) if meta else ""
        counted = Counted(source, text)
        info = tarfile.TarInfo(name)
        info.size = size
        if text:
            info.pax_headers = {_META: text}
        try:
            self._tar.addfile(info, counted)
        except OSError as error:
            if counted.count == size:
                raise
            raise StorageError(f"{name} ended after {counted.count} of {size} bytes ({error}); retry.") from error
        # tarfile remembers every member, which would take 1 KiB per object.
        self._tar.members = []  # type: ignore[attr-defined]
        self._lines.write(_line(counted.checksum, size, name))
        self.members += 1
        self.bytes += size

    def add_bytes(self, name: str, content: bytes, meta: dict[str, Any] | None = None) -> None:
        self.add(name, len(content), io.BytesIO(content), meta)

    def close(self) -> None:
        """Append the list of all members, which makes the archive valid."""
        size = self._lines.tell()
        self._lines.seek(0)
        info = tarfile.TarInfo(MANIFEST)
        info.size = size
        self._tar.addfile(info, self._lines)
        self._tar.close()
        self._lines.close()


class Member:
    """A member of a backup while it is read."""

    def __init__(self, info: tarfile.TarInfo, file: IO[bytes]) -> None:
        text = str(info.pax_headers.get(_META, ""))
        # `tarfile` drops the slash at the end of a long name, which tells the empty object `folder/` from `folder`.
        self.name = str(info.pax_headers.get("path", info.name))
        self.size = info.size
        self.meta: dict[str, Any] = json.loads(text) if text else {}
        self.content = Counted(file, text)


class Reader:
    """Reader of a backup from a stream, which verifies what it passes on.

    Raises:
        StorageError: the stream is not a backup, of a newer format, truncated or altered. The last two may only show
            at the end, so that a restore reads a backup completely before it changes anything.
    """

    def __init__(self, stream: IO[bytes], known_schemas: dict[str, set[str]] | None = None) -> None:
        self._lines = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115 see __exit__
        try:
            self._tar = tarfile.open(mode="r|", fileobj=stream, bufsize=_CHUNK_BYTES)  # noqa: SIM115 see __exit__
            first = self._tar.next()
        except tarfile.TarError as error:
            raise StorageError(f"This is not a backup of the platform ({error}); name another one.") from error
        self.members, self.bytes = 0, 0
        self.header = self._read_header(first)
        self._check_schemas(known_schemas)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()
        self._lines.close()

    def _read_header(self, info: tarfile.TarInfo | None) -> Header:
        if info is None or info.name != HEADER or not info.isfile() or info.size > _HEADER_BYTES:
            raise StorageError(
                f"This is not a backup of the platform (its first member is {info.name if info else 'missing'!r}, not "
                f"{HEADER!r}); name another one."
            )
        member = self._open(info)
        try:
            fields = json.loads(member.content.read(info.size))
            form = int(fields.pop("format"))
            if form > FORMAT:
                raise StorageError(
                    f"The backup has format {form} of version {fields.get('version')}, this version restores format "
                    f"{FORMAT} at most; use that version or a later one."
                )
            header = Header(**fields)
        except (ValueError, TypeError, KeyError, tarfile.TarError) as error:
            raise StorageError(f"The backup's description is damaged ({error}). {_DAMAGE}") from error
        self._count(member)
        return header

    def _check_schemas(self, known: dict[str, set[str]] | None) -> None:
        for database, revision in self.header.schemas.items() if known is not None else ():
            if revision not in (known or {}).get(database, set()):
                raise StorageError(
                    f"The backup's database {database} has revision {revision} of version {self.header.version}, which "
                    "this version does not know; restore it with that version."
                )

    def _open(self, info: tarfile.TarInfo) -> Member:
        file = self._tar.extractfile(info)
        if file is None:
            raise StorageError(f"The backup has a member {info.name!r} that is not a file. {_DAMAGE}")
        try:
            return Member(info, file)
        except ValueError as error:
            raise StorageError(f"The metadata of {info.name!r} are damaged. {_DAMAGE}") from error

    def _count(self, member: Member) -> None:
        if member.content.count != member.size:
            raise StorageError(f"{member.name} ended after {member.content.count} of {member.size} bytes. {_DAMAGE}")
        self._tar.members = []  # type: ignore[attr-defined]
        self._lines.write(_line(member.content.checksum, member.size, member.name))
        self.members += 1
        self.bytes += member.size

    def __iter__(self) -> Iterator[Member]:
        """Yield each member after the header; what the caller leaves unread is read, and all is verified at the end."""
        try:
            while info := self._tar.next():
                if info.name == MANIFEST:
                    self._compare(info)
                    return
                member = self._open(info)
                yield member
                member.content.drain()
                self._count(member)
        except (tarfile.TarError, EOFError) as error:
            raise StorageError(f"The backup is truncated or damaged ({error}). {_DAMAGE}") from error
        raise StorageError(f"The backup is truncated: it ends after {self.members} members. {_DAMAGE}")

    def _compare(self, info: tarfile.TarInfo) -> None:
        listed = self._open(info).content
        self._lines.seek(0)
        for line in self._lines:
            if listed.read(len(line)) != line:
                name = line.decode(errors="replace").rstrip("\n").split("  ")[-1]
                raise StorageError(
                    f"{name} was altered, or a member before it is missing: {MANIFEST} lists something else. {_DAMAGE}"
                )
        if listed.read(1):
            raise StorageError(f"The backup lacks members that {MANIFEST} lists. {_DAMAGE}")


def _line(checksum: str, size: int, name: str) -> bytes:
    return f"{checksum}  {size}  {json.dumps(name)}\n".encode()
