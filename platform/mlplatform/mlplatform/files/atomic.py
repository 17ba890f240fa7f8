"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlplatform.errors import StorageError

DRAFT = ".partial-"
"""Prefix of the names of incomplete files."""


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to beside `path`; unless there is an error, the file is flushed and renamed to `path`.

    Raises:
        OSError: the file cannot be written or renamed; `path` is as it was.
    """
    draft = path.with_name(f"{DRAFT}{uuid.uuid4().hex}")
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a text file whole or not at all, with this mode whatever the umask: only its owner can change it.

    Raises:
        OSError: the file cannot be written or renamed; `path` is as it was.
    """
    with new_file(path) as draft:
        draft.touch(mode=0o600)
        draft.write_text(text)
        draft.chmod(mode)


@contextmanager
def private_file(path: Path) -> Iterator[Path]:
    """Yield an empty file with mode 0600 that replaces another as `new_file` does; its folder is created with 0700.

    Raises:
        OSError: the file cannot be written or renamed; `path` is as it was.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with new_file(path) as draft:
        draft.touch(mode=0o600)
        yield draft


@contextmanager
def new_folder(destination: Path, is_replaceable: Callable[[Path], bool] = lambda folder: False) -> Iterator[Path]:
    """Yield a folder to fill beside `destination`; it replaces that at the end, and is removed after an error.

    Args:
        destination: missing or empty, or a folder that `is_replaceable` accepts for replacement.

    Raises:
        StorageError: the destination holds other files, or the folder cannot be created there.
    """
    is_empty = destination.is_dir() and not any(destination.iterdir())
    if destination.exists() and not (is_empty or is_replaceable(destination)):
        raise StorageError(f"The folder {destination} holds other files; name one that is new or empty.")
    draft = destination.with_name(f".{destination.name}.partial")
    old = destination.with_name(f".{destination.name}.old")
    try:
        # Leftovers of a killed process; the lock of `alone` keeps everybody else out.
        for left in (draft, old):
            shutil.rmtree(left, ignore_errors=True)
        draft.mkdir(parents=True)
    except OSError as error:
        raise StorageError(
            f"Cannot create a folder in {destination.parent} ({error.strerror}); name another folder."
        ) from error
    try:
        yield draft
        _swap(draft, destination, old)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _swap(draft: Path, destination: Path, old: Path) -> None:
    """Replace `destination` with `draft` by two renames, so that neither is ever partially visible."""
    try:
        if destination.exists():
            destination.rename(old)
        try:
            draft.rename(destination)
        except OSError:
            if old.exists():
                old.rename(destination)
            raise
    except OSError as error:
        raise StorageError(
            f"The files cannot be moved to {destination} ({error.strerror}); name another folder."
        ) from error
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def alone(destination: Path, note: str = "") -> Iterator[None]:
    """Admit one process at a time to `destination`, so that the ranks on a node fetch a data set once.

    The lock is on its parent folder, which leaves no lock file behind.

    Args:
        destination: a file or folder, which need not exist.
        note: printed to standard error before waiting for another process.
    """
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(destination.parent, os.O_RDONLY)
    except OSError as error:
        raise StorageError(
            f"Cannot create a folder in {destination.parent} ({error.strerror}); name another folder."
        ) from error
    try:
        with suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if note:
                    with suppress(OSError):  # a closed stream
                        print(note, file=sys.stderr, flush=True)
                fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
