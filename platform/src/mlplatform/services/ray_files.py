"""Removal of what Ray leaves on a node's disk for good: former sessions, logs of ended processes.

    python -m mlplatform.services.ray_files FOLDER          # a line of JSON per kind: what would be removed
    python -m mlplatform.services.ray_files FOLDER apply    # removes it, with a line of JSON for each file or folder
    python -m mlplatform.services.ray_files FOLDER hourly   # removes it now and once per hour; each node of the stack

The last one also removes secrets of people from memory when the attempts that had them have ended.

Runs as the user of Ray on the node, whose processes it looks at.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mlplatform import secret_folder

SESSIONS = "former sessions of Ray"

LOGS = "logs of Ray's ended processes"

KINDS = (SESSIONS, LOGS)

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

_OF_PROCESS = re.compile(
    r"(?:worker-[0-9a-f]+-[0-9a-f]{8}-|python-core-(?:worker|driver)-[0-9a-f]+_|event_(?:CORE_WORKER|EXPORT_TASK)_)"
    r"(?P<pid>\d+)(?!\d).*"
)
"""Logs that end with their process. Those of Ray's services have bounds: Ray rotates them."""

_OF_JOB = re.compile(r"(?:job-driver-|runtime_env_setup-|ray-train-(?:app|sys)-).*")


@dataclass(frozen=True)
class Found:
    """A file or folder.

    Attributes:
        path: where it is.
        bytes: its size, with what is below it.
        changed: time of the last change of it, or of anything below it.
    """

    path: Path
    bytes: int
    changed: float


@dataclass(frozen=True)
class Leftover:
    """A file or folder that can be removed."""

    kind: str
    found: Found


def leftovers(
    sessions: Iterable[Found],
    logs: Iterable[Found],
    current: str | None,
    living: Collection[int],
    in_use: Collection[str],
    now: float,
) -> list[Leftover]:
    """Return what can be removed.

    Args:
        sessions: folders of sessions.
        logs: files in the folders of logs of the current session.
        current: name of the current session; None if it is unknown, and then nothing is removed.
        living: ids of the node's processes.
        in_use: paths of the files that they have open.
        now: Unix time.
    """
    if current is None:
        return []
    former = [one for one in sessions if one.path.name != current and now - one.changed > _SESSION_SECONDS]
    old = [one for one in logs if now - one.changed > _LOG_SECONDS and _has_ended(one.path, living, in_use)]
    return [*(Leftover(SESSIONS, one) for one in former), *(Leftover(LOGS, one) for one in old)]


def _has_ended(log: Path, living: Collection[int], in_use: Collection[str]) -> bool:
    """Return whether a file is the log of a process, and that process has ended."""
    if str(log) in in_use:
        return False
    if match := _OF_PROCESS.fullmatch(log.name):
        return int(match["pid"]) not in living
    return bool(_OF_JOB.fullmatch(log.name))


def find(folder: Path) -> list[Leftover]:
    """Return what can be removed on this node now.

    Args:
        folder: Ray's folder, with one folder per session.
    """
    latest = folder / _LATEST
    current = latest.resolve().name if latest.is_symlink() and latest.exists() else None
    sessions = [_measured(path) for path in _sessions(folder)]
    below = (folder / str(current) / "logs").rglob("*")
    files = [_measured(path) for path in below if path.is_file() and not path.is_symlink()]
    return leftovers(sessions, files, current, _living(), _open_files(folder), time.time())


def remove(left: Leftover) -> None:
    """Remove a file or folder; another process may have done so."""
    path = left.found.path
    if path.is_dir() and not path.is_symlink():
        _discard(path)
    else:
        path.unlink(missing_ok=True)


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


def run_hourly(folder: Path) -> None:
    """Remove what can be removed, now and once per hour, and unused secrets every few seconds; never returns."""
    while True:
        for discarded in folder.glob(f"{_DISCARDED}*"):
            shutil.rmtree(discarded, ignore_errors=True)
        for left in find(folder):
            with suppress(OSError):  # it is tried again in an hour
                remove(left)
        until = time.monotonic() + _PASS_SECONDS
        while time.monotonic() < until:
            secret_folder.remove_unused()
            time.sleep(_SECRETS_SECONDS)


def _discard(path: Path) -> None:
    shutil.rmtree(_renamed(path, path.parent), ignore_errors=True)


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


def _measured(path: Path) -> Found:
    """Measure a file or folder, which may change meanwhile."""
    size, changed = 0, 0.0
    below = (Path(parent) / name for parent, folders, files in os.walk(path) for name in (*folders, *files))
    for one in (path, *below):
        with suppress(FileNotFoundError):
            status = one.lstat()
            size, changed = size + status.st_size, max(changed, status.st_mtime)
    return Found(path, size, changed)


def _living() -> set[int]:
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}


def _open_files(folder: Path) -> set[str]:
    """Return the files below a folder that a process of this user has open."""
    found = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            target = descriptor.readlink()
            if target.is_relative_to(folder):
                found.add(str(target))
    return found


def main(folder: Path, verb: str = "") -> None:
    """Print what would be removed, or remove it."""
    if verb == "hourly":
        run_hourly(folder)
    found = find(folder)
    if verb == "apply":
        for left in found:
            remove(left)
            print(json.dumps({"kind": left.kind, "count": 1, "bytes": left.found.bytes}), flush=True)
        return
    for kind in KINDS:
        sizes = [left.found.bytes for left in found if left.kind == kind]
        print(json.dumps({"kind": kind, "count": len(sizes), "bytes": sum(sizes)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
