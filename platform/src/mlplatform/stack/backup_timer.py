"""Variables with which a start runs the service `backup-timer`."""

from __future__ import annotations

import hashlib
from pathlib import Path

from mlplatform.contract import BACKUP_SERVERS
from mlplatform.errors import HostError
from mlplatform.settings.stack import StackSettings


def variables(root: Path, settings: StackSettings) -> dict[str, str]:
    """Return the service's variables, and make the folder that it writes to; none if BACKUP_TO is empty.

    Raises:
        HostError: the folder cannot be made.
    """
    if not settings.backup_to:
        return {}
    # The service has the file `.env` mounted, which `make env` and editors replace by another one: it restarts then.
    digest = {"SETTINGS_DIGEST": hashlib.sha256((root / ".env").read_bytes()).hexdigest()[:16]}
    if settings.backup_to.startswith(BACKUP_SERVERS):
        return digest
    folder = root / Path(settings.backup_to).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(
            f"The folder {folder} for backups cannot be made ({error.strerror}): make it yourself, or set BACKUP_TO in "
            ".env to another one."
        ) from error
    return {**digest, "BACKUP_FOLDER": str(folder)}
