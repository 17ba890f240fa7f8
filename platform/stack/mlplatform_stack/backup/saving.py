"""Contents of a backup, in the order in which they must be read."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO

from mlplatform.errors import StorageError
from mlplatform.settings.services import BUCKETS
from mlplatform.storage.s3 import s3_client, s3_errors
from mlplatform_stack.backup import databases, files, objects
from mlplatform_stack.backup.archive import Header, Writer
from mlplatform_stack.backup.progress import Progress
from mlplatform_stack.bootstrap.buckets import versioned
from mlplatform_stack.settings import StorageSettings

ENV, SECRETS = Path("/backup/env"), Path("/backup/secrets")
"""Mount points of the host's `.env`, and of `secrets/` if it is to be saved."""

VOLUMES = Path("/volumes")


def save(output: IO[bytes]) -> None:
    """Write a backup of the running stack to a stream.

    Databases come first, and the buckets keep what is deleted from then on: so the objects that a database names exist.

    Raises:
        PlatformError: something cannot be read; what was written must be discarded.
    """
    client, progress = s3_client(bulk=True), Progress("saved")
    # A server of others need not have versions, or a rule that removes them afterwards.
    settings = StorageSettings.load()
    external, always = bool(settings.s3_endpoint_url), versioned(settings)
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
        files.add_grafana(writer, VOLUMES / "grafana")
        files.add_folder(writer, "workspace", VOLUMES / "workspace")
        for home in sorted(VOLUMES.glob(f"{files.HOME}*")):
            files.add_folder(writer, home.name, home, files.NOT_OF_HOME)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise StorageError(f"A file of the stack cannot be read ({error}); see its folder's owner and mode.") from error


def without_passwords(text: str) -> str:
    """Return settings without the accounts that addresses such as `https://user:password@index` may contain."""
    return re.sub(r"://[^/\s@]+@", "://", text)
