"""Walk through a folder and the folders that it links to."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_LISTED = 5


def to_keep(folder: Path, verb: str) -> list[Path]:
    """Return every file below a folder, sorted; a sentence on stderr names what is not a file, with `verb`."""
    skipped: dict[Path, str] = {}
    found = sorted(files_below(folder, skipped=skipped))
    if skipped:
        print(left_out(folder, skipped, verb), file=sys.stderr, flush=True)
    return found


def files_below(
    folder: Path,
    around: frozenset[Path] = frozenset(),
    skipped: dict[Path, str] | None = None,
) -> Iterator[Path]:
    """Yield every file below a folder; a link to an enclosing folder is not followed, which would be a cycle.

    Args:
        around: the folders through which this one was reached, without links in their paths.
        skipped: gets everything else, with the reason why it cannot be read as a file.
    """
    here = folder.resolve()
    skipped = {} if skipped is None else skipped
    if here in around:
        skipped[folder] = "a link to a folder around it"
        return
    try:
        found = list(folder.iterdir())
    except PermissionError:
        skipped[folder] = "not readable"
        return
    if around and not found:
        skipped[folder] = "an empty folder"
    for path in found:
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from files_below(path, around | {here}, skipped)
        else:
            skipped[path] = kind_of(path)


def kind_of(path: Path) -> str:
    """Return in words what is at a path that is neither a file nor a folder."""
    return "a link to nothing" if path.is_symlink() else "neither a file nor a folder"


def left_out(folder: Path, skipped: Mapping[Path, str], verb: str) -> str:
    """Return the sentence that names what was skipped below a folder."""
    named = [f"{str(path.relative_to(folder))!r} ({reason})" for path, reason in sorted(skipped.items())]
    more = f" and {len(named) - _LISTED} more" if len(named) > _LISTED else ""
    return f"Not {verb} from {folder}: {', '.join(named[:_LISTED])}{more}."
