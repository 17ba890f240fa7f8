"""Size of a zip's directory, before its reader loads the directory into memory. Seen in Python 3.11 to 3.13."""

from __future__ import annotations

import zipfile
from pathlib import Path

_SIZE = 5
"""`_ECD_SIZE`: position of the size in the record."""


def directory_bytes(path: Path) -> int:
    """Return the size of a zip's directory as its last record gives it; 0 if the file is not a zip.

    `zipfile` has no public way to read the record, and it reads as many bytes of directory as the record gives.
    """
    with path.open("rb") as file:
        record = zipfile._EndRecData(file)  # type: ignore[attr-defined]
    return int(record[_SIZE]) if record else 0
