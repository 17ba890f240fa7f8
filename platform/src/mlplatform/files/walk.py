"""Walk through a folder and the folders that it links to."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path


def files_below(folder: Path, leave_out: Collection[str] = (), around: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield every file below a folder; a link to an enclosing folder is not followed, which would be a cycle.

    Args:
        leave_out: names of folders and files to skip.
        around: the folders through which this one was reached, without links in their paths.
    """
    here = folder.resolve()
    if here in around:
        return
    try:
        found = list(folder.iterdir())
    except PermissionError:
        return
    for path in found:
        if path.name in leave_out:
            continue
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from files_below(path, leave_out, around | {here})
