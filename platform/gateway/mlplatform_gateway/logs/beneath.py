"""Files below a folder whose contents others may replace at any moment."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_beneath(folder: Path, path: Path) -> BinaryIO:
    """Open a regular file below a folder; never wait for another process, and never leave the folder by a link.

    Only the descriptor is checked: what a name stands for can change between a check of the name and its opening.

    Args:
        folder: a folder that is trusted, as are the links that lead to it.
        path: the file's path, which begins with the folder's.

    Raises:
        FileNotFoundError: the file is missing, or not a regular file of the folder's file system.
        NotADirectoryError: a folder on the way is missing or a link.
        PermissionError: the file cannot be read.
    """
    *folders, name = path.relative_to(folder).parts
    here = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        device = os.fstat(here).st_dev
        for part in folders:
            below = os.open(part, _FOLDER_FLAGS, dir_fd=here)
            os.close(here)
            here = below
        file = _open_file(name, here)
    finally:
        os.close(here)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_dev != device:
        os.close(file)
        raise FileNotFoundError(errno.ENOENT, "Not a regular file of its folder's file system", str(path))
    return os.fdopen(file, "rb")


def _open_file(name: str, folder: int) -> int:
    try:
        return os.open(name, _FILE_FLAGS, dir_fd=folder)
    except OSError as error:
        # ELOOP: a link. ENXIO: a socket, or a device that does not exist.
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise FileNotFoundError(errno.ENOENT, "Not a regular file", name) from error
        raise
