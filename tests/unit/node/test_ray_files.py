"""Removal of what Ray leaves on a node: former sessions, logs of ended processes, unpacked packages."""

import os
import subprocess
import sys
import time
from pathlib import Path

from waiting import wait_for

from mlplatform.node import files as ray_files

DAY = 86_400.0
NOW = time.time()


def write(folder: Path, name: str, days: float) -> None:
    """Write a file that has not changed for some days, as its folder."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("12345")
    for one in (path, path.parent, *(parent for parent in path.parents if parent.name.startswith("session_"))):
        os.utime(one, (NOW - days * DAY, NOW - days * DAY))


def left(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in ray_files.leftovers(folder, NOW))


def test_former_sessions_are_left_over_after_a_day(tmp_path: Path) -> None:
    for name, days in (("session_now", 40), ("session_old", 2), ("session_last", 0.5)):
        write(tmp_path, f"{name}/raylet.out", days)
    assert left(tmp_path) == [], "the current session is unknown"
    (tmp_path / "session_latest").symlink_to(tmp_path / "session_now")
    assert left(tmp_path) == ["session_old"]


def test_log_without_process_is_left_over_after_week(tmp_path: Path) -> None:
    (tmp_path / "session_latest").symlink_to(tmp_path / "session_now")
    for name, days in (("worker.out", 8), ("old/worker.err", 8), ("train/app.log", 6), ("raylet.out", 400)):
        write(tmp_path, f"session_now/logs/{name}", days)
    logs = tmp_path / "session_now" / "logs"
    with (logs / "raylet.out").open("a"):
        assert left(tmp_path) == ["session_now/logs/old/worker.err", "session_now/logs/worker.out"]
        ray_files.remove_leftovers(tmp_path)
    assert sorted(path.name for path in logs.rglob("*") if path.is_file()) == ["app.log", "raylet.out"]


def test_starting_node_drops_spilled_objects_and_old_packages(tmp_path: Path) -> None:
    session = tmp_path / "session_now"
    spilled = session / f"ray_spilled_objects_{'a' * 56}"
    new, old = (session / "runtime_resources" / "working_dir_files" / name for name in ("new", "old"))
    for folder in (spilled, new, old):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    os.utime(old, (0, 0))
    ray_files.prepare_start(tmp_path)
    assert new.is_dir()
    assert not spilled.exists()
    assert not old.exists()
    discarded = [path for path in tmp_path.iterdir() if path != session]
    assert len(discarded) == 2, "they are deleted while the node starts, not before"


def test_hourly_pass_deletes_what_was_discarded(tmp_path: Path) -> None:
    (tmp_path / "discarded-old-1").mkdir()
    (tmp_path / "discarded-old-1" / "file").write_text("x")
    command = [sys.executable, "-m", ray_files.__name__, str(tmp_path), "1"]
    with subprocess.Popen(command) as process:
        try:
            wait_for(lambda: process.poll() is not None or not any(tmp_path.iterdir()), "the deletion")
            assert process.poll() is None
        finally:
            process.kill()
