"""Backups on a timer: when they are made, what a failed or a stopped one leaves, and that only one runs at a time."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import wait_for

from mlplatform_stack.backup import timer
from mlplatform_stack.backup.timer import due

HOUR = 3600.0


@pytest.mark.parametrize(
    ("succeeded", "tried", "expected"),
    [(0, 0, 24), (100, 100, 124), (100, 90, 124), (100, 124, 125), (100, 130, 131)],
    ids=["never", "complete", "complete after a failure", "failed", "failed again"],
)
def test_next_backup_follows_success_and_failure(succeeded: int, tried: int, expected: int) -> None:
    assert due(succeeded * HOUR, tried * HOUR, 24 * HOUR) == expected * HOUR


def test_failed_backup_is_repeated_sooner_than_hour_if_interval_is() -> None:
    assert due(0, 100, 60) == 160


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the records."""
    monkeypatch.setattr(timer, "STATE", tmp_path)
    monkeypatch.setattr(timer, "HEARTBEAT", tmp_path / "heartbeat")
    return tmp_path


def made(folder: Path, program: str, *, turns: int = 1) -> int:
    """Turn a new timer, whose backup runs a shell command; return the number of backups so far."""
    tried = 0.0
    for _ in range(turns):
        tried = timer.turn(24 * HOUR, ["sh", "-c", f"echo made >>{folder}/made; {program}"], tried)
    return len((folder / "made").read_text().splitlines()) if (folder / "made").exists() else 0


def test_complete_backup_is_repeated_after_interval(folder: Path) -> None:
    assert made(folder, f"touch {folder}/succeeded", turns=2) == 1
    assert made(folder, "true") == 1, "a restarted timer repeats it"
    assert (folder / "heartbeat").exists()
    long_ago = time.time() - 25 * HOUR
    os.utime(folder / "succeeded", (long_ago, long_ago))
    assert made(folder, "true") == 2


def test_failed_backup_is_reported_and_waits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert made(folder, "exit 3", turns=2) == 1
    assert "failed with exit code 3" in capsys.readouterr().err
    assert timer.last_success() == 0


def test_first_start_of_timer_is_remembered(folder: Path) -> None:
    timer.timer_started()
    os.utime(folder / "timer", (1, 1))
    timer.timer_started()
    assert (folder / "timer").stat().st_mtime == 1


def test_stopped_timer_ends_its_backup(tmp_path: Path) -> None:
    program = f"""
import signal, sys
from pathlib import Path
from mlplatform_stack.backup import timer
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
folder = timer.STATE = Path({str(tmp_path)!r})
timer.HEARTBEAT = folder / "heartbeat"
backup = f"trap 'touch {{folder}}/ended; kill $!; exit 1' TERM; touch {{folder}}/begun; sleep 60 & wait"
timer.run(3600, ["sh", "-c", backup])
"""
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        wait_for((tmp_path / "begun").exists, "the start of the backup")
        process.terminate()
        assert process.wait(30) == 143
    assert (tmp_path / "ended").exists()


def test_second_backup_waits_for_end_of_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order = []

    def second() -> None:
        with timer.one_at_a_time():
            order.append("second")

    with timer.one_at_a_time():
        thread = threading.Thread(target=second)
        thread.start()
        wait_for(lambda: "Another backup or restore runs" in capsys.readouterr().err, "the note")
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
