"""Program of `make data`, run in a container: unpack an archive of Food-11 into the folder that the lessons read.

    python -m mlplatform.services.food11 SOURCE [--folder /mnt/Food-11] [--force]

The published archive names photos `training/<class>_<number>.jpg`; the lessons, like torchvision's `ImageFolder`,
expect `training/class_<class>/<number>.jpg`. The folder appears complete or not at all: it is filled under another
name, checked, and then renamed.
"""

from __future__ import annotations

import argparse
import lzma
import re
import shutil
import sys
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from mlplatform.errors import PlatformError, StorageError, UnreachableError
from mlplatform.files import atomic, progress

PARTS = ("training", "validation", "evaluation")

CLASSES = tuple(f"class_{number:02d}" for number in range(11))

PUBLISHED = {"training": 9866, "validation": 3430, "evaluation": 3347}
"""Photos of the published data set. Another one with the same structure is also accepted, with a notice."""

_PHOTO = re.compile(r"[^.].*\.(jpe?g|png)", re.IGNORECASE)

_NUMBERED = re.compile(r"(\d{1,2})_(.+)")

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Photo:
    """File in an archive, and its target below the folder."""

    member: str
    size: int
    target: PurePosixPath


def fill(source: str, folder: Path, force: bool = False) -> Counter[str]:
    """Fill `folder` from an archive, unless it already contains photos; return the number of photos of each part.

    Args:
        source: address (http, https) or path of a zip or tar archive.
        folder: receives training, validation and evaluation, each with class_00 to class_10.
        force: replace the folder's contents.

    Raises:
        StorageError: the archive is damaged or contains something else; nothing was changed.
        UnreachableError: the server of the address did not answer.
    """
    with atomic.alone(folder):
        if not force and (found := count(folder)):
            print(f"{folder} already contains {_listed(found)}. FORCE=1 replaces them.")
            return found
        if not source:
            raise StorageError("No archive of Food-11 is given: run `make data SRC=...` with its address or path.")
        with atomic.new_folder(folder, is_replaceable=lambda old: force) as draft:
            with _local(source, draft) as archive:
                _unpack(archive, draft, PurePosixPath(source.partition("?")[0]).name)
            filled = count(draft)
    print(f"{folder} is filled: {_listed(filled)}.")
    if filled != PUBLISHED:
        print(f"That is not the published data set, which has {_listed(Counter(PUBLISHED))}.")
    return filled


def count(folder: Path) -> Counter[str]:
    """Return the number of photos of each part; empty if the folder does not exist."""
    return Counter(path.parts[-3] for path in folder.glob("*/class_*/*") if path.parts[-3] in PARTS)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[part]:,} photos for {part}" for part in PARTS)


@contextmanager
def _local(source: str, draft: Path) -> Iterator[Path]:
    """Yield the archive as a file; one that was downloaded is removed afterwards."""
    if not source.startswith(("http://", "https://")):
        if not Path(source).is_file():
            raise StorageError(f"The archive {source} does not exist: set SRC to its address or path.")
        yield Path(source)
        return
    archive = draft / ".archive"
    _download(source, archive)
    yield archive
    archive.unlink()


def _download(address: str, file: Path) -> None:
    import httpx

    # Without its query, which may hold a key.
    shown = address.partition("?")[0]
    try:
        with httpx.stream("GET", address, follow_redirects=True, timeout=60) as answer:
            answer.raise_for_status()

            def save(moved: progress.Counter) -> None:
                with file.open("wb") as written:
                    for chunk in answer.iter_bytes(_CHUNK):
                        written.write(chunk)
                        moved.add(len(chunk))

            progress.run("Downloading", int(answer.headers.get("Content-Length", 0)), [save])
    except httpx.HTTPStatusError as error:
        raise UnreachableError(f"{shown} answered {error.response.status_code}: set SRC to another address.") from None
    except httpx.HTTPError as error:
        reason = error or type(error).__name__
        raise UnreachableError(
            f"{shown} could not be downloaded ({reason}): retry, or set SRC to another address."
        ) from error


def _unpack(archive: Path, draft: Path, name: str) -> None:
    """Write every photo of an archive below `draft` and check it; messages call the archive `name`."""
    try:
        with _opened(archive) as (members, read):
            photos = _planned(members)

            def write(moved: progress.Counter) -> None:
                for photo in photos:
                    target = draft / photo.target
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with read(photo.member) as content, target.open("wb") as written:
                        shutil.copyfileobj(content, written, _CHUNK)
                    _check(target, photo.member)
                    moved.add(photo.size)

            progress.run("Unpacking", sum(photo.size for photo in photos), [write])
    except StorageError as error:
        raise StorageError(f"{name} was rejected: {error}") from error
    except OSError as error:
        if error.errno:
            raise StorageError(f"{name} could not be unpacked ({error.strerror}).") from error
        raise StorageError(f"{name} was rejected: it is damaged ({error}).") from error
    # RuntimeError: an archive with a password, or a compression that Python does not support.
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        raise StorageError(f"{name} was rejected: it is damaged ({error}).") from error


Members = list[tuple[str, int]]


@contextmanager
def _opened(archive: Path) -> Iterator[tuple[Members, Callable[[str], IO[bytes]]]]:
    """Yield names and sizes of an archive's files, and a function that opens one of them."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            yield [(entry.filename, entry.file_size) for entry in zipped.infolist() if not entry.is_dir()], zipped.open
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:
            entries = {entry.name: entry for entry in tar if not entry.isdir()}
            if links := [name for name, entry in entries.items() if not entry.isfile()]:
                raise StorageError(f"{links[0]} in it is not a regular file.")
            yield [(name, entry.size) for name, entry in entries.items()], lambda name: _content(tar, entries[name])
    else:
        raise StorageError("it is neither a zip nor a tar archive.")


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(entry)
    assert content, "regular files have content"  # noqa: S101
    return content


def _planned(members: Members) -> list[Photo]:
    """Return the photos with their targets; other files, such as a README, are left out.

    Raises:
        StorageError: a name leads out of the folder or has no class, two files have one target, or a class is missing.
    """
    photos = []
    for member, size in members:
        path = PurePosixPath(member.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts:
            raise StorageError(f"{member} in it leads out of the folder.")
        if target := _target(path):
            photos.append(Photo(member, size, target))
    taken = Counter(photo.target for photo in photos)
    if twice := [target for target, times in taken.items() if times > 1]:
        raise StorageError(f"it contains {twice[0]} {taken[twice[0]]} times.")
    there = {photo.target.parent for photo in photos}
    for part in PARTS:
        for kind in CLASSES:
            if PurePosixPath(part, kind) not in there:
                raise StorageError(f"it has no photos of {part}/{kind}.")
    return photos


def _target(path: PurePosixPath) -> PurePosixPath | None:
    """Return `training/class_03/12.jpg` for `.../training/3_12.jpg` and `.../training/class_03/12.jpg`, else None."""
    if not _PHOTO.fullmatch(path.name) or len(path.parts) < 2:
        return None
    around, folder = ("", *path.parts)[-3:-1]
    if around in PARTS and folder in CLASSES:
        return PurePosixPath(around, folder, path.name)
    if folder not in PARTS:
        return None
    numbered = _NUMBERED.fullmatch(path.name)
    if not numbered or int(numbered[1]) >= len(CLASSES):
        raise StorageError(f"{path} in it names none of the {len(CLASSES)} classes.")
    return PurePosixPath(folder, CLASSES[int(numbered[1])], numbered[2])


def _check(photo: Path, member: str) -> None:
    """Read a photo's header, which has its format and size."""
    from PIL import Image

    try:
        Image.open(photo).close()
    except Exception as error:  # each format's reader has errors of its own
        raise StorageError(f"{member} in it is not a readable photo.") from error


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mlplatform.services.food11")
    parser.add_argument("source", nargs="?", default="", help="address or path of a zip or tar archive")
    parser.add_argument("--folder", type=Path, default=Path("/mnt/Food-11"))
    parser.add_argument("--force", action="store_true", help="replace the contents of the folder")
    args = parser.parse_args()
    try:
        fill(args.source, args.folder, args.force)
    except PlatformError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
