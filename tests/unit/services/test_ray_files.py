"""Removal of what Ray leaves on a node: former sessions, logs of ended processes, unpacked packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import wait_for

from mlplatform.services import ray_files
from mlplatform.services.ray_files import LOGS, SESSIONS, Found, leftovers

DAY = 86_400.0
NOW = 1_800_000_000.0
WORKER = f"worker-{'a' * 56}-01000000-"
CORE = f"python-core-worker-{'a' * 56}_"


def found(name: str, days: float) -> Found:
    return Found(Path("/tmp/ray") / name, 5, NOW - days * DAY)


def select(sessions: list[Found], logs: list[Found], living: set[int], in_use: set[str] = frozenset()) -> list[str]:  # type: ignore[assignment]
    left = leftovers(sessions, logs, "session_now", living, in_use, NOW)
    return [one.found.path.name for one in left]


def test_former_sessions_are_left_over_after_a_day() -> None:
    sessions = [found("session_now", 40), found("session_old", 2), found("session_last", 0.5)]
    assert select(sessions, [], set()) == ["session_old"]
    assert leftovers(sessions, [], None, set(), set(), NOW) == [], "the current session is unknown"


@pytest.mark.parametrize("name", [f"{WORKER}12.out", f"{WORKER}12.1.err", f"{CORE}12.log", "event_CORE_WORKER_12.log"])
def test_log_of_ended_process_is_left_over_after_a_week(name: str) -> None:
    assert select([], [found(name, 8)], {1, 123}) == [name]
    assert select([], [found(name, 8)], {12}) == []
    assert select([], [found(name, 6)], {1, 123}) == []


@pytest.mark.parametrize("name", ["job-driver-mine--1-0a1b2c.log", "runtime_env_setup-01000000.log"])
def test_log_that_is_open_is_kept(name: str) -> None:
    assert select([], [found(name, 8)], set()) == [name]
    assert select([], [found(name, 8)], set(), {f"/tmp/ray/{name}"}) == []


@pytest.mark.parametrize("name", ["raylet.out", "gcs_server.out", "dashboard_agent.log", "notes.txt", "12.log"])
def test_logs_of_services_and_unknown_files_are_kept(name: str) -> None:
    assert select([], [found(name, 400)], set()) == []


def test_dry_run_is_what_is_removed(tmp_path: Path) -> None:
    """As `make prune` runs it on a node."""
    old = time.time() - 30 * DAY
    logs = tmp_path / "session_now" / "logs"
    files = {
        "session_old/logs/raylet.out": old,
        f"session_now/logs/{WORKER}4000001.out": old,
        f"session_now/logs/old/{WORKER}4000002.err": old,
        f"session_now/logs/train/ray-train-app-worker-{'b' * 32}.log": old,
        f"session_now/logs/{WORKER}4000003.out": time.time(),
        f"session_now/logs/{WORKER}{os.getpid()}.out": old,
        "session_now/logs/job-driver-open.log": old,
        "session_now/logs/raylet.out": old,
    }
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("12345")
    for name, moment in files.items():
        os.utime(tmp_path / name, (moment, moment))
    for folder in (tmp_path / "session_old", tmp_path / "session_old" / "logs"):
        os.utime(folder, (old, old))
    (tmp_path / "session_latest").symlink_to(tmp_path / "session_now")
    command = [sys.executable, "-m", ray_files.__name__, str(tmp_path)]

    def run(*words: str) -> list[dict[str, object]]:
        output = subprocess.run([*command, *words], capture_output=True, text=True, check=True).stdout
        return [json.loads(line) for line in output.splitlines()]

    with (logs / "job-driver-open.log").open():
        planned = run()
        removed = run("apply")
        assert all(entry["count"] == 0 for entry in run())
    assert [(entry["kind"], entry["count"]) for entry in planned] == [(SESSIONS, 1), (LOGS, 3)]
    for entry in planned:
        assert sum(int(str(one["bytes"])) for one in removed if one["kind"] == entry["kind"]) == entry["bytes"]
    assert len(removed) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["session_latest", "session_now"]
    kept = {name for name in files if (tmp_path / name).exists()}
    assert kept == set(files) - {*list(files)[:4]}


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
    command = [sys.executable, "-m", ray_files.__name__, str(tmp_path), "hourly"]
    with subprocess.Popen(command) as process:
        try:
            wait_for(lambda: process.poll() is not None or not any(tmp_path.iterdir()), "the deletion")
            assert process.poll() is None
        finally:
            process.kill()
