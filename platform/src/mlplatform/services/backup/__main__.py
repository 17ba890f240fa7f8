"""Program of the services `backup` and `restore`, which `mlplatform stack backup|restore` runs, and `backup-timer`.

python -m mlplatform.services.backup save ADDRESS SHOWN DAILY WEEKLY MONTHLY
python -m mlplatform.services.backup add ADDRESS SHOWN DAILY WEEKLY MONTHLY    # begins only if there was no backup
python -m mlplatform.services.backup every HOURS TO DAILY WEEKLY MONTHLY    # TO: a server, or else the mounted folder
python -m mlplatform.services.backup verify|apply ADDRESS SHOWN SNAPSHOT    # verify prints the id of the snapshot
python -m mlplatform.services.backup has-data        # exits with 3 if there is some
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path

from mlplatform.contract import BACKUP_SERVERS
from mlplatform.errors import PlatformError
from mlplatform.services.backup import files, marks, restoring, spool
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
    if verb in ("save", "add"):
        with marks.one_at_a_time():
            spool.clear()
            _save(*arguments, begin=verb == "save")
        return 0
    if verb == "every":
        _every(*arguments)
    address, shown, snapshot = arguments
    repository = Repository(address, shown)
    if verb == "verify":
        repository.check()
        snapshot = repository.id_of(snapshot)
        header = restoring.verify(partial(repository.opened, snapshot))
        print(f"The backup of {header.created[:19]} by version {header.version} is complete.", file=sys.stderr)
        print(snapshot)
    else:
        with marks.one_at_a_time():
            restoring.apply(partial(repository.opened, snapshot))
        files.give_to_owner_of(restoring.HANDOVER)
    return 0


def _save(address: str, shown: str, *keep: str, begin: bool) -> None:
    repository = Repository(address, shown)
    try:
        # The timer must not fill the host's own disk if that of the backups is not mounted.
        repository.save(save, begin=begin or not marks.last_success())
        marks.succeeded()
        repository.forget(Keep(*map(int, keep)))
    finally:
        if address == str(FOLDER):
            files.give_to_owner_of(FOLDER)


def _every(hours: str, to: str, *keep: str) -> None:
    address = to if to.startswith(BACKUP_SERVERS) else str(FOLDER)
    program = (sys.executable, "-m", "mlplatform.services.backup")
    Timer(float(hours) * 3600, [*program, "add", address, to, *keep]).run()


if __name__ == "__main__":
    # Raised where the program is, so that a stopped backup ends restic and resets the buckets.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main(*sys.argv[1:]))
    except PlatformError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
