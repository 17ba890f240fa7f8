"""SIGTERM of a notice in a driver that trains: it stays until a checkpoint is listed, and others end at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DRIVER = """
import signal, sys, time
import ray
from ray._private import utils
from pathlib import Path
from mlplatform.compat.ray_train import active_fits
from mlplatform.training import leaving

fits, job = active_fits(), Path(sys.argv[1])
fits.update(sys.argv[2:])
leaving.stay_until_saved()
# As ray.init does, which follows.
utils.set_sigterm_handler(lambda number, frame: sys.exit(number))
print("ready", flush=True)
while not (job / "end").exists():
    time.sleep(0.05)
fits.clear()
sys.exit((job / "end").read_text() or 0)
"""
SNAPSHOT = "checkpoint_manager_snapshot.json"
BOUND_S = 120


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Folder of a job."""
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


@contextmanager
def driver(job: Path, *trainings: str, grace: str = "30") -> Iterator[subprocess.Popen[str]]:
    """Start the driver of the job's second attempt, in which these trainings run."""
    own = {"MLPLATFORM_JOB_ID": job.name, "MLPLATFORM_ATTEMPT": "2", "MLPLATFORM_STORAGE": str(job.parent)}
    command = [sys.executable, "-c", DRIVER, str(job), *trainings]
    variables = {**os.environ, **own, "MLPLATFORM_GRACE_SECONDS": grace}
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=variables, **streams) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def give_notice(job: Path, attempt: int) -> None:
    notice = {"attempt": attempt, "deadline": time.time() + 30, "why": "Job a needs it."}
    (job / "notice").write_text(json.dumps(notice))


def save(job: Path, training: str, after: Path) -> None:
    """Let Ray Train list a checkpoint, after another file was written."""
    snapshot = job / training / SNAPSHOT
    snapshot.parent.mkdir(exist_ok=True)
    while not snapshot.exists() or snapshot.stat().st_mtime_ns <= after.stat().st_mtime_ns:
        snapshot.write_text("{}")


def asked(process: subprocess.Popen[str]) -> None:
    """Send the signal of the notice, and wait until the driver has understood it."""
    process.send_signal(signal.SIGTERM)
    assert process.stdout
    assert "Job a needs it." in process.stdout.readline()


def test_driver_stays_until_all_its_trainings_have_saved(job: Path) -> None:
    save(job, "one", after=job)
    give_notice(job, attempt=2)
    with driver(job, "one", "other") as process:
        asked(process)
        # A second one, as the shell around it may pass on what it has got too.
        process.send_signal(signal.SIGTERM)
        save(job, "one", after=job / "notice")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=3)
        save(job, "other", after=job / "notice")
        assert process.wait(timeout=BOUND_S) == signal.SIGTERM
    assert not (job / "done").exists()


@pytest.mark.parametrize(("ends_with", "done"), [("", True), ("It has failed.", False)])
def test_program_that_ends_by_itself_is_recorded(ends_with: str, done: bool, job: Path) -> None:
    give_notice(job, attempt=2)
    with driver(job, "one") as process:
        asked(process)
        (job / "end").write_text(ends_with)
        assert process.wait(timeout=BOUND_S) == (0 if done else 1)
    assert (job / "done").exists() == done
    assert not done or (job / "done").read_text() == "2"


@pytest.mark.parametrize(
    ("attempt", "grace", "trainings"),
    [(None, "30", ["one"]), (1, "30", ["one"]), (2, "", ["one"]), (2, "30", [])],
    ids=["no-notice", "of-former-attempt", "no-teams", "no-training"],
)
def test_driver_without_notice_or_training_ends_at_once(
    attempt: int | None, grace: str, trainings: list[str], job: Path
) -> None:
    if attempt:
        give_notice(job, attempt)
    with driver(job, *trainings, grace=grace) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=BOUND_S) == signal.SIGTERM
