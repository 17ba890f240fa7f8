"""Restore of a backup, after all of it was verified."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from mlplatform.errors import StorageError
from mlplatform.settings.services import BUCKETS
from mlplatform.storage.s3 import s3_errors
from mlplatform_stack.backup import databases, files, objects
from mlplatform_stack.backup.archive import Header, Member, reading
from mlplatform_stack.backup.progress import Progress
from mlplatform_stack.backup.repository import Repository
from mlplatform_stack.bootstrap import buckets
from mlplatform_stack.settings import StorageSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

HANDOVER = Path("/handover")
"""Folder of the host for the settings and secrets of the backup."""

VOLUMES = Path("/volumes")


def verify(repository: Repository, snapshot: str) -> Header:
    """Read a backup completely, which makes restic verify it; change nothing.

    Raises:
        StorageError: it is damaged, not a backup, of a newer version, or has files of people who have no notebook here.
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
    """Check that the files of people have volumes to be restored to.

    Args:
        kinds: first parts of the names in a backup.

    Raises:
        StorageError: the stack lacks the notebook of a person.
    """
    homes = [kind for kind in kinds if kind.startswith(files.HOME)]
    if missing := sorted(home.removeprefix(files.HOME) for home in homes if not (VOLUMES / home).is_dir()):
        raise StorageError(
            f"The backup has files of notebooks that this stack lacks ({', '.join(missing)}): run `make notebook "
            f"PERSON={missing[0]}` for each, so that the files have a place, then restore again."
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
    elif kind in ("workspace", "grafana") or kind.startswith(files.HOME):
        files.restore_entry(VOLUMES / kind, member.meta, member.content)
        progress.add(member.size)
    elif kind in ("settings", "secrets"):
        target = HANDOVER / kind
        target.mkdir(mode=0o700, exist_ok=True)
        (target / Path(name).name).write_bytes(member.content.read())
