"""Removal of what Ray leaves on a node's disk for good, `python -m mlplatform.node.files FOLDER LIMIT_GB`.

Each node of the stack runs it beside the raylet, as the user of Ray, whose processes it looks at: now and once per hour
it removes former sessions, old logs and packages beyond the limit, and within seconds the secrets of people whose
attempts have ended from memory.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mlplatform.node import environments
from mlplatform.secrets import secret_folder

_LATEST = "session_latest"

_DISCARDED = "discarded-"
"""Prefix of folders that were renamed to be deleted: they vanish at once, and a crash does not leave half a session."""

_SESSION_SECONDS = 24 * 3600.0
"""The log shipper sends files of former sessions, and does not look at those that are a day old."""

_LOG_SECONDS = 7 * 24 * 3600.0

_UNPACKED_SECONDS = 7 * 24 * 3600.0

_PASS_SECONDS = 3600.0

_SECRETS_SECONDS = 5.0
"""Interval at which folders of secrets are removed that no process holds."""


def leftovers(folder: Path, now: float) -> Iterator[Path]:
    """Yield what can be removed: sessions that ended a day ago, logs unchanged for a week that no process has open.

    Args:
        folder: Ray's folder, with one folder per session.
        now: Unix time.
    """
    latest = folder / _LATEST
    if not (latest.is_symlink() and latest.exists()):
        return  # the current session is unknown
    current = latest.resolve()
    for session in _sessions(folder):
        if session.name != current.name and now - _changed(session) > _SESSION_SECONDS:
            yield session
    opened = _open_files(current)
    for path in (current / "logs").rglob("*"):
        if path.is_file() and not path.is_symlink() and path not in opened and now - _changed(path) > _LOG_SECONDS:
            yield path


def prepare_start(folder: Path) -> None:
    """Remove what no process of a node that is about to start can use: spilled objects, and old unpacked packages.

    While a node runs, Ray keeps account of both in memory, and removes unpacked packages beyond 10 GB of each kind.
    After a start it has no record of earlier ones.

    Args:
        folder: Ray's folder; the raylet has not started.
    """
    for session in _sessions(folder):
        for spilled in session.glob("ray_spilled_objects_*"):
            _set_aside(spilled, folder)
        for unpacked in session.glob("runtime_resources/*/*"):
            if time.time() - unpacked.lstat().st_mtime > _UNPACKED_SECONDS:
                _set_aside(unpacked, folder)


def remove_leftovers(folder: Path) -> None:
    """Remove what can be removed now, and what a node that started has set aside."""
    for discarded in folder.glob(f"{_DISCARDED}*"):
        shutil.rmtree(discarded, ignore_errors=True)
    for path in list(leftovers(folder, time.time())):
        with suppress(OSError):  # it is tried again in an hour
            if path.is_dir():
                shutil.rmtree(_renamed(path, folder), ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _set_aside(path: Path, folder: Path) -> None:
    # What cannot be removed must not keep the node from starting.
    with suppress(OSError):
        _renamed(path, folder)


def _renamed(path: Path, folder: Path) -> Path:
    target = folder / f"{_DISCARDED}{path.name}-{time.time_ns()}"
    path.rename(target)
    return target


def _sessions(folder: Path) -> list[Path]:
    return [path for path in folder.glob("session_*") if path.is_dir() and not path.is_symlink()]


def _changed(path: Path) -> float:
    """Return the time of the last change of a file or folder, or of anything below it."""
    found = 0.0
    for one in (path, *path.rglob("*")):
        with suppress(FileNotFoundError):
            found = max(found, one.lstat().st_mtime)
    return found


def _open_files(folder: Path) -> set[Path]:
    """Return the files below a folder that a process of this user has open."""
    found = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            target = descriptor.readlink()
            if target.is_relative_to(folder):
                found.add(target)
    return found


def main(folder: Path, limit_gb: float) -> None:
    """Remove leftovers once per hour, and unused secrets every few seconds; never returns."""
    while True:
        remove_leftovers(folder)
        environments.evict(folder / environments.FOLDER, limit_gb)
        until = time.monotonic() + _PASS_SECONDS
        while time.monotonic() < until:
            secret_folder.remove_unused()
            time.sleep(_SECRETS_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
