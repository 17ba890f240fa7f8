"""Environments of a node, for projects with a lock: each is installed once, and kept while there is room.

An environment is the folder KEY beside the file KEY.lock, which is empty until the environment is complete and whose
time is that of the last use. Its users have a shared lock on the file, whoever changes it an exclusive one. The kernel
releases both with the process, and what a killed one has left is installed again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

FOLDER = "environments"
"""Name of the folder of environments, below Ray's."""

CACHES = {"UV_CACHE_DIR": "cache/uv", "PIP_CACHE_DIR": "cache/pip", "UV_PYTHON_INSTALL_DIR": "cache/python"}
"""Variables of uv and pip, and folders below that of the environments: there, uv links files, and the Pythons outlive
the container."""

_DOWNLOAD_SECONDS = 3600.0
"""Age from which a download that no environment has is removed; a younger one may be about to be linked."""


def use(folder: Path, build: Callable[[int], None]) -> None:
    """Keep an environment while this process or one that it starts runs; build it first unless it is complete.

    Args:
        folder: of the environment.
        build: fills the folder, which does not exist; its processes inherit the given file, which has the lock.
    """
    lock = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT)
    while True:
        _lock(lock, fcntl.LOCK_SH)
        if os.fstat(lock).st_size:
            break
        _lock(lock, fcntl.LOCK_EX)
        if not os.fstat(lock).st_size:
            shutil.rmtree(folder, ignore_errors=True)
            try:
                build(lock)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            os.write(lock, b"complete\n")
    os.utime(lock)
    os.set_inheritable(lock, True)


def _lock(file: int, kind: int) -> None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Another job is installing the same packages: waiting for it.", file=sys.stderr, flush=True)
        fcntl.flock(file, kind)


def evict(root: Path, limit_gb: float) -> None:
    """Remove downloads that no environment has, then environments that no job uses, until the rest fits.

    Args:
        root: folder of the environments, with the caches.
        limit_gb: bound on the size of all of it; the environments that were unused for longest leave first.
    """
    if _size(root) > limit_gb * 1e9:
        shutil.rmtree(root / CACHES["PIP_CACHE_DIR"], ignore_errors=True)
        _remove_downloads(root)
    for file in sorted(root.glob("*.lock"), key=lambda file: file.stat().st_mtime):
        # Also what a build has left that was killed.
        if _size(root) > limit_gb * 1e9 and file.with_suffix("").exists():
            with file.open("r+b") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                lock.truncate()
                shutil.rmtree(file.with_suffix(""), ignore_errors=True)
            _remove_downloads(root)


def _size(folder: Path) -> int:
    """Return the bytes on disk; `du` counts linked files once."""
    import subprocess

    done = subprocess.run(["du", "-sB1", folder], capture_output=True, check=False)
    return int((done.stdout.split() or [b"0"])[0])


def _remove_downloads(root: Path) -> None:
    """Remove what uv has unpacked and no environment links to; uv unpacks it again if need be (seen in 0.13.8)."""
    for archive in (root / CACHES["UV_CACHE_DIR"]).glob("archive-*/*"):
        links = max((file.stat().st_nlink for file in archive.glob("*.dist-info/METADATA")), default=1)
        if links == 1 and time.time() - archive.stat().st_mtime > _DOWNLOAD_SECONDS:
            shutil.rmtree(archive, ignore_errors=True)
