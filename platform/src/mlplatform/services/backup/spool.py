"""Temporary files of a backup or restore, in a volume that outlives the container."""

from __future__ import annotations

import tempfile
from pathlib import Path

_PREFIX = "mlplatform-spool-"


def new() -> tempfile._TemporaryFileWrapper[bytes]:
    """Return a new file, which is removed when it is closed."""
    return tempfile.NamedTemporaryFile(prefix=_PREFIX)


def clear() -> None:
    """Remove the files of backups and restores that were killed; none may run meanwhile."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        path.unlink(missing_ok=True)
