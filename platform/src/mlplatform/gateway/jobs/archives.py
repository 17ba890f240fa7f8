"""Inspection of an uploaded archive: its content's digest, and the bounds of what unpacking it would write.

Nothing that the archive declares is trusted: sizes are counted while its files are decompressed, none is written.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import posixpath
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from mlplatform.compat.zip_directory import directory_bytes
from mlplatform.gateway.errors import PackageError, PackageTooLargeError

_CHUNK_BYTES = 1 << 20

_DIRECTORY_BYTES = 16 << 20
"""Largest directory of a zip, which its reader keeps in memory."""

_LINK_BYTES = 4096
"""Longest path on Linux."""

_ENTRIES = 100_000
"""Largest number of files and folders."""

_XZ_BYTES = 128 << 20
"""Memory for unpacking an xz file; the strongest preset takes 65 MiB."""

_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
"""Methods of compression whose memory is bounded."""

_NAME_OF_BYTES = re.compile(r"_ray_pkg_([0-9a-f]{40})\.(?:zip|tar\.gz|tar\.xz)")
"""Name of an archive that is uploaded as it is (`get_uri_for_package` of Ray 2.60)."""

_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError, ValueError)
"""Errors of the readers; RuntimeError and its NotImplementedError for encryption and unknown methods of compression."""


def check_name_of_bytes(path: Path, name: str) -> None:
    """Raise PackageError if Ray's name for a file that is uploaded as it is differs from the file's SHA-1."""
    match = _NAME_OF_BYTES.fullmatch(name)
    if match is None:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha1").hexdigest()
    if found != match[1]:
        raise PackageError(
            f"The package {name} does not have the content that its name stands for (its SHA-1 is {found}); upload it "
            "with Ray's or our client."
        )


def content_digest(path: Path, name: str, limit_bytes: int) -> str:
    """Return the SHA-256 of the names and contents of an archive's files, whatever their order, times and modes.

    Ray names the package of a folder by 64 bits over names and contents (`_hash_directory` of
    `ray/_private/runtime_env/packaging.py` in Ray 2.60) that cannot be computed from the archive: folders whose files
    are all ignored count, and are not packed. Contents with a given hash can also be made, as it is an exclusive or. So
    packages of one name are compared by this digest instead. An archive that its reader does not open counts as one
    file; Ray does not unpack it.

    Args:
        name: the package's name, which determines the format as for Ray.
        limit_bytes: bytes to which the archive may unpack.

    Raises:
        PackageTooLargeError: it unpacks to more, or has too many entries.
        PackageError: it is damaged, or one of its paths leaves the folder into which it is unpacked.
    """
    files = _zip_files(path, name) if name.endswith((".zip", ".whl")) else _tar_files(path, name)
    digests, size, entries = [], 0, 0
    try:
        for file_name, chunks in files:
            entries += 1
            if entries > _ENTRIES:
                raise PackageTooLargeError(
                    f"The package {name} has more than {_ENTRIES} files; move data out of the folder."
                )
            digest = hashlib.sha256(file_name.encode("utf-8", "surrogateescape") + b"\0")
            for chunk in chunks:
                size += len(chunk) if file_name else 0  # nothing for the archive itself
                if size > limit_bytes:
                    raise PackageTooLargeError(
                        f"The package {name} unpacks to more than {limit_bytes / (1 << 20):g} MiB; move data "
                        "out of the folder, or raise PACKAGE_UNPACKED_BYTES."
                    )
                digest.update(chunk)
            if not file_name.endswith("/"):
                digests.append(digest.digest())
    except _DAMAGED as error:
        raise PackageError(f"The package {name} is damaged ({error}); upload it again.") from error
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()


def _zip_files(path: Path, name: str) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield name and content of each entry of a zip; names of folders end with a slash."""
    try:
        if directory_bytes(path) > _DIRECTORY_BYTES:
            raise PackageTooLargeError(f"The package {name} has too many files; move data out of the folder.")
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        yield "", _whole(path)
        return
    with archive:
        for entry in archive.infolist():
            _check_path(entry.filename, name)
            if entry.compress_type not in _ZIP_METHODS:
                raise PackageError(f"The package {name} is compressed in a way that costs memory; use deflate.")
            with archive.open(entry) as file:
                if stat.S_ISLNK(entry.external_attr >> 16):
                    target = file.read(_LINK_BYTES).decode("utf-8", "surrogateescape")
                    _check_path(posixpath.join(posixpath.dirname(entry.filename), target), name)
                    yield entry.filename, iter([target.encode("utf-8", "surrogateescape")])
                else:
                    yield entry.filename, _chunks(file.read)


def _tar_files(path: Path, name: str) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Count what a compressed tar unpacks to, then yield the tar itself as the one file to compare.

    Ray names such a package by the SHA-1 of its bytes, and skips its links and each path that leaves the folder
    (`untar_package` of Ray 2.60). The tar is not parsed here: a header may ask its reader for any amount of memory.
    """
    unpacked = _unpacked_xz if name.endswith(".xz") else _unpacked_gzip
    try:
        next(unpacked(path), b"")
    except _MemoryLimitError as error:
        raise PackageError(f"The package {name} takes more than {_XZ_BYTES >> 20} MiB to unpack; use gzip.") from error
    except (lzma.LZMAError, zlib.error, EOFError, OSError):
        yield "", _whole(path)
        return
    yield "/", unpacked(path)
    yield "", _whole(path)


def _unpacked_gzip(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") as file:
        yield from _chunks(file.read)


def _unpacked_xz(path: Path) -> Iterator[bytes]:
    """Yield what an xz file unpacks to, with bounded memory: the file says how large its dictionary is, up to 4 GiB."""
    reader = lzma.LZMADecompressor(memlimit=_XZ_BYTES)
    for part in _whole(path):
        while True:
            try:
                yield reader.decompress(part, _CHUNK_BYTES)
            except lzma.LZMAError as error:
                if "Memory usage limit" in str(error):
                    raise _MemoryLimitError(str(error)) from error
                raise
            part = reader.unused_data
            if reader.eof and part:
                reader = lzma.LZMADecompressor(memlimit=_XZ_BYTES)
            elif reader.eof or reader.needs_input:
                break


class _MemoryLimitError(Exception):
    """An archive asks its reader for too much memory."""


def _check_path(path: str, name: str) -> None:
    """Raise PackageError for a path that leaves the folder into which the archive is unpacked."""
    normal = posixpath.normpath(path.replace("\\", "/"))
    if normal.startswith("/") or normal.split("/", 1)[0] == "..":
        raise PackageError(
            f"The package {name} has the path {path[:200]!r}, which leaves the folder that it is unpacked into; "
            "remove it."
        )


def _chunks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while chunk := read(_CHUNK_BYTES):
        yield chunk


def _whole(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from _chunks(file.read)
