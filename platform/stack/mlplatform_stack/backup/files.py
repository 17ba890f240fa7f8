"""Folders of volumes in a backup: files, folders and symbolic links with owner and mode."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from mlplatform.errors import StorageError
from mlplatform_stack.backup.archive import Writer

_NOT_OF_HOME = (".cache", ".ray/auth_token", ".mlflow/credentials", ".aws/credentials")
"""Caches that can be filled again, and tokens, which another log-in replaces."""

GRAFANA = "grafana.db"
"""Name of Grafana's database in its volume."""

_DATA_SOURCES = {
    "data_source": "UPDATE data_source SET secure_json_data = NULL",
    "secrets": "DELETE FROM secrets WHERE type = 'datasource'",
}
"""Removal of Prometheus' password, by table. It is encrypted with a key that is in Grafana's source, and Grafana writes
it again at each start, from the stack's secrets."""


def left_out(homes: Path) -> set[str]:
    """Return what a backup of people's homes leaves out, relative to their folder."""
    return {f"{home.name}/{name}" for home in homes.iterdir() for name in _NOT_OF_HOME}


def add_folder(writer: Writer, prefix: str, folder: Path, without: Collection[str] = ()) -> None:
    """Append a folder's files; one that is changed or removed meanwhile is copied as it is found, but never torn.

    Sockets and devices are left out.

    Args:
        writer: the backup.
        prefix: beginning of the names in it.
        folder: the folder.
        without: files and folders below it that are left out, as paths relative to it.
    """
    writer.add_bytes(f"{prefix}/.", b"", {"kind": "folder", "path": ".", **_owner(folder.lstat())})
    for parent, folders, names in os.walk(folder):
        inside = Path(parent).relative_to(folder)
        folders[:] = [name for name in folders if (inside / name).as_posix() not in without]
        for name in sorted((*folders, *names)):
            relative = (inside / name).as_posix()
            if relative not in without:
                _add(writer, prefix, Path(parent, name), relative)


def _add(writer: Writer, prefix: str, path: Path, relative: str) -> None:
    try:
        status = path.lstat()
        meta: dict[str, Any] = {"path": relative, **_owner(status)}
        if stat.S_ISLNK(status.st_mode):
            writer.add_bytes(f"{prefix}/{relative}", b"", {**meta, "kind": "link", "target": str(path.readlink())})
        elif stat.S_ISDIR(status.st_mode):
            writer.add_bytes(f"{prefix}/{relative}", b"", {**meta, "kind": "folder"})
        elif stat.S_ISREG(status.st_mode):
            # A copy, because its size must be known before its contents, and the notebook may be writing it.
            with tempfile.TemporaryFile() as copy, path.open("rb") as file:
                shutil.copyfileobj(file, copy)
                add_file(writer, f"{prefix}/{relative}", copy, {**meta, "kind": "file"})
    except FileNotFoundError:
        return


def add_file(writer: Writer, name: str, file: IO[bytes], meta: dict[str, Any] | None = None) -> None:
    """Append an open file from its beginning."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    writer.add(name, size, file, meta)


def add_grafana(writer: Writer, volume: Path) -> None:
    """Append Grafana's database, if there is one, as of one moment."""
    path = volume / GRAFANA
    if not path.is_file():
        return
    # One name, so that the next backup replaces the copy of one that was killed.
    copy = Path(tempfile.gettempdir(), GRAFANA)
    copy.unlink(missing_ok=True)
    copy.touch(mode=0o600)
    with (
        closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
        tables = {name for (name,) in target.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        for table, statement in _DATA_SOURCES.items():
            if table in tables:
                target.execute(statement)
        target.commit()
        # Otherwise the file keeps what was deleted in pages that are free.
        target.execute("VACUUM")
    with copy.open("rb") as file:
        copy.unlink()
        owner = {"folder": _owner(volume.stat()), **_owner(path.stat())}
        add_file(writer, f"grafana/{GRAFANA}", file, {"kind": "file", "path": GRAFANA, **owner})


def restore_entry(folder: Path, meta: dict[str, Any], content: IO[bytes]) -> None:
    """Write a file, folder or link of a backup below a volume's folder, in place of another kind that is there.

    Raises:
        StorageError: the path leads out of the folder.
    """
    path, kind = _below(folder, meta["path"]), meta["kind"]
    is_folder = path.is_dir() and not path.is_symlink()
    if is_folder and kind != "folder":
        shutil.rmtree(path)
    elif not is_folder:
        path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "link":
        path.symlink_to(meta["target"])
    else:
        with path.open("wb") as file:
            shutil.copyfileobj(content, file)
    if "folder" in meta:
        _give(folder, meta["folder"])
    _give(path, meta)


def _below(folder: Path, relative: str) -> Path:
    path = folder / relative
    # A link of the backup, or one that was there before, must not lead a later file out of the volume.
    if not path.parent.resolve().is_relative_to(folder.resolve()) and relative != ".":
        raise StorageError(f"The backup's file {relative!r} leads out of its folder; do not use this backup.")
    return path


def _owner(status: os.stat_result) -> dict[str, int]:
    return {"uid": status.st_uid, "gid": status.st_gid, "mode": stat.S_IMODE(status.st_mode)}


def _give(path: Path, owner: dict[str, Any]) -> None:
    os.chown(path, owner["uid"], owner["gid"], follow_symlinks=False)
    if not path.is_symlink():
        path.chmod(owner["mode"] & 0o1777)  # without SUID and SGID


def give_to_owner_of(folder: Path) -> None:
    """Give everything in a mounted folder of the host to the folder's owner, who otherwise could not move it."""
    owner = folder.stat()
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            os.chown(Path(parent, name), owner.st_uid, owner.st_gid, follow_symlinks=False)
