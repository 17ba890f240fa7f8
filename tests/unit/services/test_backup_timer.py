"""Backups on a timer: when they are made, what a failed or a stopped one leaves, and that only one runs at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import wait_for

from mlplatform.services.backup import marks
from mlplatform.services.backup.timer import Timer, due

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


def timer(folder: Path, program: str) -> Timer:
    """A timer whose backup appends a line to `made` and then runs a shell command."""
    command = ["sh", "-c", f"echo made >>{folder}/made; {program}"]
    return Timer(24 * HOUR, command, folder, folder / "heartbeat")


def made(folder: Path) -> int:
    return len((folder / "made").read_text().splitlines())


def test_complete_backup_is_repeated_after_interval(tmp_path: Path) -> None:
    nightly = timer(tmp_path, f"touch {tmp_path}/succeeded")
    nightly.turn()
    nightly.turn()
    assert made(tmp_path) == 1
    long_ago = time.time() - 25 * HOUR
    os.utime(tmp_path / "succeeded", (long_ago, long_ago))
    restarted = timer(tmp_path, "true")
    restarted.turn()
    assert made(tmp_path) == 2


def test_restarted_timer_does_not_repeat_complete_backup(tmp_path: Path) -> None:
    marks.succeeded(tmp_path)
    timer(tmp_path, "true").turn()
    assert not (tmp_path / "made").exists()
    assert (tmp_path / "heartbeat").exists()


def test_failed_backup_is_reported_and_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nightly = timer(tmp_path, "exit 3")
    nightly.turn()
    nightly.turn()
    assert made(tmp_path) == 1
    assert "failed with exit code 3" in capsys.readouterr().err
    assert marks.last_success(tmp_path) == 0


def test_first_start_of_timer_is_remembered(tmp_path: Path) -> None:
    marks.timer_started(tmp_path)
    os.utime(tmp_path / "timer", (1, 1))
    marks.timer_started(tmp_path)
    assert (tmp_path / "timer").stat().st_mtime == 1


def test_stopped_timer_ends_its_backup(tmp_path: Path) -> None:
    program = f"""
import signal, sys
from pathlib import Path
from mlplatform.services.backup.timer import Timer
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
folder = Path({str(tmp_path)!r})
backup = f"trap 'touch {{folder}}/ended; kill $!; exit 1' TERM; touch {{folder}}/begun; sleep 60 & wait"
Timer(3600, ["sh", "-c", backup], folder, folder / "heartbeat").run()
"""
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        wait_for((tmp_path / "begun").exists, "the start of the backup")
        process.terminate()
        assert process.wait(30) == 143
    assert (tmp_path / "ended").exists()


def test_second_backup_waits_for_end_of_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order = []

    def second() -> None:
        with marks.one_at_a_time(tmp_path):
            order.append("second")

    with marks.one_at_a_time(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        wait_for(lambda: "Another backup or restore runs" in capsys.readouterr().err, "the note")
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
