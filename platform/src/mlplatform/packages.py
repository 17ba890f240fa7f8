"""The folder of a job as the zip that Ray unpacks on every node (its `working_dir` package)."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from mlplatform import source
from mlplatform.errors import JobError

MAX_BYTES = 100 * 1024 * 1024
"""Ray's dashboard takes no larger request (`aiohttp`'s client_max_size as Ray sets it)."""

_LEFT_OUT = {".git", ".venv", "venv", "__pycache__"}
"""What Ray's own client leaves out (`ray._private.ray_constants.RAY_RUNTIME_ENV_DEFAULT_EXCLUDES`)."""


def build(folder: Path) -> tuple[str, bytes]:
    """Zip a folder, without what git ignores.

    Returns:
        The package's name, `_ray_pkg_<digest of names and contents>.zip`, and its bytes.

    Raises:
        JobError: the package is larger than Ray takes.
    """
    digest = hashlib.sha256()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(_files(folder)):
            name = path.relative_to(folder).as_posix()
            content = path.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
            archive.writestr(_entry(name, path), content)
    if buffer.tell() > MAX_BYTES:
        raise JobError(
            f"The folder {folder} makes a package of {buffer.tell() >> 20} MiB, and Ray takes {MAX_BYTES >> 20} MiB; "
            "move data out of it, or name it in .gitignore."
        )
    return f"_ray_pkg_{digest.hexdigest()[:16]}.zip", buffer.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    listed = source.git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    candidates = (folder / name for name in listed.split("\0") if name) if listed else folder.rglob("*")
    return (
        path for path in candidates if path.is_file() and not _LEFT_OUT.intersection(path.relative_to(folder).parts)
    )


def _entry(name: str, path: Path) -> zipfile.ZipInfo:
    """An entry without the file's time, so that the same content gives the same bytes."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = path.stat().st_mode << 16
    return entry
