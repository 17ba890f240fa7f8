"""Contents of a set of files: SHA-256 checksums in the format of `sha256sum`, and one digest over all of them.

A downloaded model can be checked without this package: `sha256sum --check SHA256SUMS`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from mlplatform.contract import CHECKSUMS
from mlplatform.errors import StorageError
from mlplatform.files.walk import files_below, to_keep
from mlplatform.text.artifact_names import problem_of

FILE = CHECKSUMS
"""Name of the file with a model's checksums, beside the files that it lists."""

LENGTH = 32
"""Length of a digest, in characters: 128 bits, because MLflow accepts at most 36 characters for a data set's."""

_CHUNK_BYTES = 1 << 20

Sums = dict[str, str]
"""Path below the folder, with slashes -> SHA-256 as 64 hexadecimal characters."""


def files_of(source: Path) -> dict[str, Path]:
    """List a folder's files, including those in linked folders, by path below it, or a single file by name; sorted.

    Raises:
        StorageError: no file is there, or no store can keep a name.
    """
    found = {source.name: source} if source.is_file() else {}
    if source.is_dir():
        found = {path.relative_to(source).as_posix(): path for path in to_keep(source, "stored")}
    if not found:
        raise StorageError(f"There is no file at {source}; name a file, or a folder that holds some.")
    for name in found:
        if problem := "has a backslash; rename the file" if "\\" in name else problem_of(name):
            raise StorageError(f"The name {name!r} in {source} {problem}.")
    return dict(sorted(found.items()))


def sha256(path: Path, add: Callable[[int], None] = lambda count: None) -> str:
    """Return the checksum of a file; `add` is called with the number of bytes after each read."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
            add(len(chunk))
    return hasher.hexdigest()


def render(sums: Mapping[str, str]) -> str:
    """Format checksums as `sha256sum` prints them, sorted by path."""
    return "".join(f"{sums[path]}  {path}\n" for path in sorted(sums))


def parse(text: str) -> Sums:
    """Parse a text that `render` returned.

    Raises:
        StorageError: a path leads out of the folder.
    """
    sums = {path: checksum for checksum, _, path in (line.partition("  ") for line in text.split("\n") if line)}
    check_paths(sums)
    return sums


def check_paths(paths: Iterable[str]) -> None:
    """Reject paths that lead out of their folder, so that nobody who stores files can write beside them.

    Raises:
        StorageError: a path leads out of it.
    """
    for path in paths:
        if not path or path.startswith("/") or ".." in path.split("/"):
            raise StorageError(f"The checksums name {path!r}, which is not below the folder; do not use these files.")


def digest(sums: Mapping[str, str]) -> str:
    """Return one digest over names and contents: the start of the SHA-256 of the rendered checksums."""
    return hashlib.sha256(render(sums).encode()).hexdigest()[:LENGTH]


def holds(folder: Path, sums: Mapping[str, str]) -> bool:
    """Return whether a folder holds exactly these files with these contents, apart from a file of checksums."""
    if not folder.is_dir():
        return False
    found = {path.relative_to(folder).as_posix(): path for path in files_below(folder)}
    found.pop(FILE, None)
    return found.keys() == sums.keys() - {FILE} and all(sha256(path) == sums[name] for name, path in found.items())
