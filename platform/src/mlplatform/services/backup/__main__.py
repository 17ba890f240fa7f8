"""Program of the services `backup` and `restore`, which `mlplatform stack backup|restore` runs, and `backup-timer`.

python -m mlplatform.services.backup save - | save ADDRESS SHOWN DAILY WEEKLY MONTHLY
python -m mlplatform.services.backup add ADDRESS SHOWN DAILY WEEKLY MONTHLY    # not if former backups there are gone
python -m mlplatform.services.backup every HOURS TO DAILY WEEKLY MONTHLY    # TO: a server, or else the mounted folder
python -m mlplatform.services.backup verify|apply FILE SHOWN | verify|apply ADDRESS SHOWN SNAPSHOT
                                                     # verify prints the id of the snapshot that it has read
python -m mlplatform.services.backup has-data        # exits with 3 if there is some
python -m mlplatform.services.backup inspect         # prints the state of databases and buckets as JSON
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from mlplatform.contract import BACKUP_SERVERS
from mlplatform.errors import PlatformError, StorageError
from mlplatform.services.backup import files, inspection, marks, restoring, spool
from mlplatform.services.backup.repository import Keep, Repository
from mlplatform.services.backup.saving import save
from mlplatform.services.backup.timer import Timer

FOLDER = Path("/target")
"""Mount point of a folder of the host."""

HAS_DATA = 3


def main(verb: str, *arguments: str) -> int:
    """Run a verb; return its exit status."""
    if verb == "has-data":
        return HAS_DATA if restoring.has_data() else 0
    if verb == "inspect":
        print(json.dumps(inspection.state()))
        return 0
    if verb in ("save", "add"):
        with marks.one_at_a_time():
            spool.clear()
            _save(*arguments, begin=verb == "save")
        return 0
    if verb == "every":
        _every(*arguments)
    source = _Source(*arguments)
    if verb == "verify":
        source.check()
        header = restoring.verify(source.open)
        print(f"The backup of {header.created[:19]} by version {header.version} is complete.", file=sys.stderr)
        if source.snapshot:
            print(source.snapshot)
    else:
        with marks.one_at_a_time():
            restoring.apply(source.open)
        files.give_to_owner_of(restoring.HANDOVER)
    return 0


def _save(address: str, shown: str = "", *keep: str, begin: bool = True) -> None:
    if address == "-":
        save(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        marks.succeeded(address)
        return
    repository = Repository(address, shown)
    try:
        # The timer must not fill the host's own disk if that of the backups is not mounted.
        repository.save(save, begin=begin or not marks.has_succeeded_at(shown))
        marks.succeeded(shown)
        repository.forget(Keep(*map(int, keep)))
    finally:
        if address == str(FOLDER):
            files.give_to_owner_of(FOLDER)


def _every(hours: str, to: str, *keep: str) -> None:
    address = to if to.startswith(BACKUP_SERVERS) else str(FOLDER)
    program = (sys.executable, "-m", "mlplatform.services.backup")
    Timer(float(hours) * 3600, [*program, "add", address, to, *keep]).run()


class _Source:
    """A backup in a file or in a repository."""

    def __init__(self, address: str, shown: str, snapshot: str = "") -> None:
        self._path = Path(address)
        self._shown = shown
        self._repository = Repository(address, shown) if snapshot else None
        self.snapshot = snapshot

    def check(self) -> None:
        if self._repository:
            self._repository.check()
            self.snapshot = self._repository.id_of(self.snapshot)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        if self._repository:
            with self._repository.opened(self.snapshot) as stream:
                yield stream
            return
        try:
            file = self._path.open("rb")
        except OSError as error:
            raise StorageError(f"{self._shown} cannot be read ({error.strerror}); name another file.") from error
        with file:
            yield file


if __name__ == "__main__":
    # Raised where the program is, so that a stopped backup ends restic and resets the buckets.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main(*sys.argv[1:]))
    except PlatformError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
