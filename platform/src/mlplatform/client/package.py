"""The folder of a job as the zip that Ray unpacks on every node (its `working_dir` package)."""

from __future__ import annotations

import hashlib
import io
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from mlplatform.client import git
from mlplatform.errors import JobError
from mlplatform.files.walk import files_below

MAX_BYTES = 100 * 1024 * 1024
"""Size limit of a request to Ray's dashboard (`aiohttp`'s client_max_size as Ray sets it)."""

_CHUNK_BYTES = 1 << 20

_LEFT_OUT = {".git", ".venv", "venv", "__pycache__"}
"""Names that Ray's own client excludes (`ray._private.ray_constants.RAY_RUNTIME_ENV_DEFAULT_EXCLUDES`)."""


def build(folder: Path) -> tuple[str, bytes]:
    """Zip a folder, including the targets of its links, without the files that git ignores.

    Returns:
        The package's name, `_ray_pkg_<digest of names and contents>.zip`, and its bytes.

    Raises:
        JobError: the package is larger than Ray accepts.
    """
    digest = hashlib.sha256()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(set(_files(folder))):
            name = path.relative_to(folder).as_posix()
            entry = _entry(name, path)
            digest.update(f"{name}\0{entry.file_size}\0".encode())
            with path.open("rb") as file, archive.open(entry, "w") as packed:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    packed.write(chunk)
                    _check_size(folder, buffer.tell())
    _check_size(folder, buffer.tell())
    return f"_ray_pkg_{digest.hexdigest()[:16]}.zip", buffer.getvalue()


def _check_size(folder: Path, size: int) -> None:
    if size > MAX_BYTES:
        raise JobError(
            f"The folder {folder} makes a package of more than {MAX_BYTES >> 20} MiB, which Ray does not accept; "
            "move data out of it or, with git installed, list it in .gitignore (a linked folder without a final slash)."
        )


def _files(folder: Path, around: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield the files to upload.

    Args:
        around: the folders through which this one was reached, so that no cycle of links is followed.
    """
    here = folder.resolve()
    if here in around:
        return
    listed = _listed(folder)
    if not listed:
        yield from files_below(folder, _LEFT_OUT, around)
    for path in (folder / name for name in listed if not _LEFT_OUT.intersection(Path(name).parts)):
        if path.is_file():
            yield path
        elif path.is_dir():
            # Git lists a linked folder, a submodule or another repository as a single name.
            yield from _files(path, around | {here})


def _listed(folder: Path) -> list[str]:
    """Return the files that git does not ignore; also without a repository, or if it ignores the whole folder."""
    command = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = git.git(folder, *command)
    if not listed:
        with tempfile.TemporaryDirectory(prefix="mlplatform-") as scratch:
            git.git(folder, "init", "--quiet", "--bare", "--template=", scratch)
            listed = git.git(folder, f"--git-dir={scratch}", "--work-tree=.", *command)
    return [name for name in (listed or "").split("\0") if name]


def _entry(name: str, path: Path) -> zipfile.ZipInfo:
    """Return an entry without the file's time, so that the same content gives the same bytes."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    status = path.stat()
    entry.external_attr = status.st_mode << 16
    entry.file_size = status.st_size
    return entry
