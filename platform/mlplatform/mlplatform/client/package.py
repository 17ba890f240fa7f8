"""The folder of a job as the zip that Ray unpacks on every node (its `working_dir` package)."""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mlplatform.client import git
from mlplatform.errors import JobError
from mlplatform.files.walk import kind_of, left_out

MAX_BYTES = 100 * 1024 * 1024
"""Size limit of a request to Ray's dashboard (`aiohttp`'s client_max_size as Ray sets it)."""

_CHUNK_BYTES = 1 << 20

_ZIP_FOLDER = 0x10
"""The attribute by which a zip marks a folder."""

_LEFT_OUT = {".git", ".venv", "venv", "__pycache__"}
"""Names that Ray's own client excludes (`ray._private.ray_constants.RAY_RUNTIME_ENV_DEFAULT_EXCLUDES`)."""


def build(folder: Path, command: str = "") -> tuple[str, bytes]:
    """Zip a folder, with its empty folders and the targets of its links, without the files that git ignores.

    What is neither a file nor a folder is left out, with a sentence on stderr.

    Args:
        folder: the job's folder.
        command: shell command line; a file of the folder that it names is packed even if git ignores it.

    Returns:
        The package's name, `_ray_pkg_<digest of names and contents>.zip`, and its bytes.

    Raises:
        JobError: the package is larger than Ray accepts, or a file cannot be read or has a name that is not UTF-8.
    """
    digest = hashlib.sha256()
    buffer = io.BytesIO()
    try:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(_to_pack(folder, command)):
                entry = _entry(path.relative_to(folder).as_posix(), path)
                digest.update(f"{entry.filename}\0{entry.file_size}\0".encode())
                if entry.is_dir():
                    archive.writestr(entry, b"")
                    continue
                with path.open("rb") as file, archive.open(entry, "w") as packed:
                    while chunk := file.read(_CHUNK_BYTES):
                        digest.update(chunk)
                        packed.write(chunk)
                        _check_size(folder, buffer.tell())
    except OSError as error:
        raise JobError(
            f"{error.filename} cannot be read ({error.strerror}), so the job would lack it; make it readable or, with "
            "git installed, list it in .gitignore."
        ) from error
    _check_size(folder, buffer.tell())
    return f"_ray_pkg_{digest.hexdigest()[:16]}.zip", buffer.getvalue()


def _to_pack(folder: Path, command: str) -> set[Path]:
    """Return the files to upload, and the folders below which there are none."""
    skipped: dict[Path, str] = {}
    found = set(_entries(folder, skipped))
    named = {folder / word for word in _words(command) if _is_below(folder, word)} - found
    for message in (
        left_out(folder, skipped, "uploaded") if skipped else "",
        f"Uploaded because the command names it, although git ignores it: {', '.join(map(str, named))}."
        if named
        else "",
    ):
        if message:
            print(message, file=sys.stderr, flush=True)
    found |= named
    return found - {parent for path in found for parent in path.parents} - {folder}


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _is_below(folder: Path, word: str) -> bool:
    path = folder / word
    with suppress(OSError, ValueError):  # a word that is too long for a name, or has a zero byte
        return path.is_relative_to(folder) and ".." not in path.parts and path.is_file()
    return False


def _check_size(folder: Path, size: int) -> None:
    if size > MAX_BYTES:
        raise JobError(
            f"The folder {folder} makes a package of more than {MAX_BYTES >> 20} MiB, which Ray does not accept; "
            "move data out of it or, with git installed, list it in .gitignore (a linked folder without a final slash)."
        )


def _entries(
    folder: Path, skipped: dict[Path, str], around: frozenset[Path] = frozenset(), plain: bool = False
) -> Iterator[Path]:
    """Yield a folder, and the files and folders to upload below it.

    Args:
        skipped: gets what is neither, with the reason.
        around: the folders through which this one was reached, so that no cycle of links is followed.
        plain: whether git knows nothing about this folder.
    """
    here = folder.resolve()
    if here in around:
        skipped[folder] = "a link to a folder around it"
        return
    yield folder
    listed = [] if plain else list(_listed(folder))
    plain = not listed
    for path in listed or folder.iterdir():
        if _LEFT_OUT.intersection(path.relative_to(folder).parts):
            continue
        if path.is_file():
            yield path
        elif not path.is_dir():
            skipped[path] = kind_of(path)
        elif plain or path.is_symlink() or (path / ".git").exists():
            yield from _entries(path, skipped, around | {here}, plain)
        else:
            yield path


def _listed(folder: Path) -> Iterator[Path]:
    """Yield what git does not ignore, folders too; also without a repository, or if it ignores the whole folder.

    Git lists a linked folder, a submodule or another repository as a single name.
    """
    command = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    with tempfile.TemporaryDirectory(prefix="mlplatform-") as scratch:
        place: tuple[str, ...] = ()
        listed = git.git(folder, *command)
        if not listed:
            git.git(folder, "init", "--quiet", "--bare", "--template=", scratch)
            place = (f"--git-dir={scratch}", "--work-tree=.")
            listed = git.git(folder, *place, *command)
        files = {folder / name for name in (listed or "").split("\0") if name}
        yield from files
        level = [folder] if files else []
        while level:
            found = {
                str(path.relative_to(folder)): path
                for parent in level
                for path in _unlisted_in(parent)
                if path not in files
            }
            ignored = git.git(folder, *place, "check-ignore", "-z", "--stdin", given="\0".join(found)) or ""
            kept = [found[name] for name in found.keys() - set(ignored.split("\0"))]
            yield from kept
            level = [path for path in kept if path.is_dir() and not path.is_symlink()]


def _unlisted_in(folder: Path) -> Iterator[Path]:
    """Yield what git does not list by itself: folders, and entries that are not files."""
    with os.scandir(folder) as entries:
        for entry in entries:
            # Not DirEntry.is_file, which raises for a link to itself.
            if entry.name not in _LEFT_OUT and not (path := folder / entry.name).is_file():
                yield path


def _entry(name: str, path: Path) -> zipfile.ZipInfo:
    """Return an entry without the file's time, so that the same content gives the same bytes.

    Raises:
        JobError: the name is not UTF-8.
    """
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise JobError(
            f"The name {name!r} is not UTF-8, as names in a package are; rename it or list it in .gitignore."
        ) from error
    status = path.stat()
    is_folder = path.is_dir()
    entry = zipfile.ZipInfo(f"{name}/" if is_folder else name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = status.st_mode << 16 | (_ZIP_FOLDER if is_folder else 0)
    entry.file_size = 0 if is_folder else status.st_size
    return entry
