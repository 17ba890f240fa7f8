"""Contents of a backup: saved in the order in which they must be read, and restored after all of it was verified.

Progress is shown as lines on stderr, because a program reads stdout.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING

from mlplatform.errors import StorageError
from mlplatform.settings.services import BUCKETS
from mlplatform.storage.s3 import s3_client, s3_errors
from mlplatform_stack.backup import databases, files, objects
from mlplatform_stack.backup.archive import Header, Member, Writer, reading
from mlplatform_stack.backup.repository import Repository
from mlplatform_stack.bootstrap import buckets
from mlplatform_stack.settings import StorageSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_PROGRESS_SECONDS = 2.0
ENV, SECRETS = Path("/backup/env"), Path("/backup/secrets")
"""Mount points of the host's `.env`, and of `secrets/` if it is to be saved."""

VOLUMES = Path("/volumes")
"""Folder with the volumes that the compose files mount into `backup` and `restore`: the only list of those saved."""

HANDOVER = Path("/handover")
"""Folder of the host for the settings and secrets of the backup."""


class Progress:
    """Count of members and bytes, printed every two seconds and at the end.

    Args:
        what: word for what is being done, such as "saved".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._members, self._bytes = 0, 0
        self._printed = time.monotonic()

    def note(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def add(self, size: int) -> None:
        self._members += 1
        self._bytes += size
        if time.monotonic() - self._printed >= _PROGRESS_SECONDS:
            self.print()

    def print(self) -> None:
        from rich.filesize import decimal

        self._printed = time.monotonic()
        self.note(f"{self._what} {self._members:,} files and objects, {decimal(self._bytes)}")


def save(output: IO[bytes]) -> None:
    """Write a backup of the running stack to a stream.

    Databases come first, and the buckets keep what is deleted from then on: so the objects that a database names exist.

    Raises:
        PlatformError: something cannot be read; what was written must be discarded.
    """
    client, progress = s3_client(bulk=True), Progress("saved")
    # A server of others need not have versions, or a rule that removes them afterwards.
    settings = StorageSettings.load()
    external, always = bool(settings.s3_endpoint_url), buckets.versioned(settings)
    with s3_errors("s3://"), objects.versions_kept(client, () if external else BUCKETS, always):
        since = datetime.now(UTC)
        header = Header(version("mlplatform"), since.isoformat(), databases.revisions(), SECRETS.is_dir())
        writer = Writer(output, header)
        for database in databases.DATABASES:
            with databases.dumped(database) as dump:
                files.add_file(writer, f"databases/{database}", dump)
            progress.note(f"saved the database {database}")
        until = datetime.now(UTC)
        for bucket in BUCKETS:
            if external and not objects.keeps_versions(client, bucket):
                versions = objects.as_they_are(client, bucket)
            else:
                versions = objects.versions_at(client, bucket, since, until, earliest=bucket == "ray")
            for found, content, meta in objects.opened(client, bucket, versions):
                place = {"bucket": bucket, "key": found.key}
                writer.add(f"objects/{bucket}/{found.key}", found.size, content, {**place, **meta})
                progress.add(found.size)
    _save_files(writer)
    writer.close()
    progress.print()


def _save_files(writer: Writer) -> None:
    try:
        writer.add_bytes("settings/env", without_passwords(ENV.read_text()).encode())
        for path in sorted(SECRETS.iterdir()) if SECRETS.is_dir() else ():
            if path.is_file():  # a rotation has its new secrets in a folder
                writer.add_bytes(f"secrets/{path.name}", path.read_bytes())
        for volume in sorted(VOLUMES.iterdir()):
            name = volume.name
            if name == "grafana":
                files.add_grafana(writer, volume)
            else:
                files.add_folder(writer, name, volume, files.left_out(volume) if name == "homes" else ())
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise StorageError(f"A file of the stack cannot be read ({error}); see its folder's owner and mode.") from error


def without_passwords(text: str) -> str:
    """Return settings without the accounts that addresses such as `https://user:password@index` may contain."""
    return re.sub(r"://[^/\s@]+@", "://", text)


def verify(repository: Repository, snapshot: str) -> Header:
    """Read a backup completely, which makes restic verify it; change nothing.

    Raises:
        StorageError: it is damaged, not a backup, of a newer version, or has files of a volume that is not here.
    """
    progress, kinds = Progress("verified"), set()
    with (
        repository.opened(snapshot) as stream,
        reading(stream, databases.known_revisions()) as (header, members),
    ):
        for member in members:
            progress.add(member.size)
            kinds.add(member.name.partition("/")[0])
    progress.print()
    check_places(kinds)
    return header


def check_places(kinds: Collection[str]) -> None:
    """Check that the files of each volume have a volume to be restored to.

    Args:
        kinds: first parts of the names in a backup.

    Raises:
        StorageError: the stack lacks a service.
    """
    places = {"databases", "objects", "settings", "secrets", *(volume.name for volume in VOLUMES.iterdir())}
    if lacking := sorted({*kinds} - places):
        raise StorageError(
            f"The backup has files of volumes that this stack lacks ({', '.join(lacking)}): restore it with the "
            "version that made it."
        )


def has_data() -> bool:
    """Return whether the stack has runs, jobs or objects."""
    client = _owner()
    with s3_errors("s3://"):
        return databases.has_rows() or any(
            client.list_objects_v2(Bucket=bucket, MaxKeys=1).get("KeyCount") for bucket in BUCKETS
        )


def apply(repository: Repository, snapshot: str) -> None:
    """Replace the stack's data by a backup; the services that write must be stopped. It can be repeated."""
    client, progress = _owner(), Progress("restored")
    with (
        s3_errors("s3://"),
        repository.opened(snapshot) as stream,
        reading(stream, databases.known_revisions()) as (_, members),
    ):
        for bucket in BUCKETS:
            objects.empty(client, bucket)
        uploads = objects.Uploads(client)
        for member in members:
            _restore(member, uploads, progress)
        uploads.wait()
    progress.print()


def _owner() -> S3Client:
    settings = StorageSettings.load()
    return buckets.client_of(settings, buckets.owner(settings))


def _restore(member: Member, uploads: objects.Uploads, progress: Progress) -> None:
    kind, _, name = member.name.partition("/")
    if kind == "databases" and name in databases.DATABASES:
        databases.restore(name, member.content)
        progress.note(f"restored the database {name}")
    elif kind == "objects":
        uploads.add(member.meta, member.size, member.content, lambda: progress.add(member.size))
    elif kind in ("settings", "secrets"):
        target = HANDOVER / kind
        target.mkdir(mode=0o700, exist_ok=True)
        (target / Path(name).name).write_bytes(member.content.read())
    elif VOLUMES / kind in VOLUMES.iterdir():
        files.restore_entry(VOLUMES / kind, member.meta, member.content)
        progress.add(member.size)
