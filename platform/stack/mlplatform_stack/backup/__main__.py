"""Program of the services `backup` and `restore`, which `mlplatform stack backup|restore` runs, and `backup-timer`.

python -m mlplatform_stack.backup save TO         # TO: a server, or else the mounted folder
python -m mlplatform_stack.backup add TO          # begins only if there was no backup
python -m mlplatform_stack.backup every           # runs `add BACKUP_TO` each BACKUP_EVERY_HOURS
python -m mlplatform_stack.backup verify|apply FROM SNAPSHOT    # verify prints the id of the snapshot
python -m mlplatform_stack.backup has-data        # exits with 3 if there is some
"""

from __future__ import annotations

import signal
import sys

from mlplatform.errors import PlatformError
from mlplatform_stack.backup import contents, files, timer
from mlplatform_stack.backup.repository import FOLDER, Repository
from mlplatform_stack.settings import BackupSettings

HAS_DATA = 3


def main(verb: str, *arguments: str) -> int:
    """Run a verb; return its exit status."""
    if verb == "has-data":
        return HAS_DATA if contents.has_data() else 0
    if verb == "every":
        settings = BackupSettings.load()
        command = [sys.executable, "-m", "mlplatform_stack.backup", "add", settings.backup_to]
        timer.run(settings.backup_every_hours * 3600, command)
    repository = Repository(arguments[0])
    if verb in ("save", "add"):
        with timer.one_at_a_time():
            _save(repository, BackupSettings.load(), begin=verb == "save")
    elif verb == "verify":
        repository.check()
        snapshot = repository.id_of(arguments[1])
        header = contents.verify(repository, snapshot)
        print(f"The backup of {header.created[:19]} by version {header.version} is complete.", file=sys.stderr)
        print(snapshot)
    else:
        with timer.one_at_a_time():
            contents.apply(repository, arguments[1])
        files.give_to_owner_of(contents.HANDOVER)
    return 0


def _save(repository: Repository, settings: BackupSettings, *, begin: bool) -> None:
    try:
        # The timer must not fill the host's own disk if that of the backups is not mounted.
        repository.save(contents.save, begin=begin or not timer.last_success())
        timer.succeeded()
        repository.forget(settings.backup_keep_daily, settings.backup_keep_weekly, settings.backup_keep_monthly)
    finally:
        if repository.address == str(FOLDER):
            files.give_to_owner_of(FOLDER)


if __name__ == "__main__":
    # Raised where the program is, so that a stopped backup ends restic and resets the buckets.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main(*sys.argv[1:]))
    except PlatformError as error:
        sys.exit(str(error))
