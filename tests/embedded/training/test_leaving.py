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

import pytest

DRIVER = """
import signal, sys, time
import ray
from ray._private import utils
from mlplatform.training import leaving

leaving.stay_until_saved(sys.argv[1])
# As ray.init does, which follows.
utils.set_sigterm_handler(lambda number, frame: sys.exit(number))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
SNAPSHOT = "checkpoint_manager_snapshot.json"
BOUND_S = 120


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Folder of a job, with that of its training run."""
    (tmp_path / "job/fit").mkdir(parents=True)
    return tmp_path / "job"


@contextmanager
def driver(job: Path, grace: str = "30") -> Iterator[subprocess.Popen[str]]:
    """Start the driver of the job's second attempt."""
    own = {"MLPLATFORM_JOB_ID": job.name, "MLPLATFORM_ATTEMPT": "2", "MLPLATFORM_STORAGE": str(job.parent)}
    command = [sys.executable, "-c", DRIVER, str(job / "fit")]
    variables = {**os.environ, **own, "MLPLATFORM_GRACE_SECONDS": grace}
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def give_notice(job: Path, attempt: int) -> None:
    (job / "notice").write_text(
        json.dumps({"attempt": attempt, "deadline": time.time() + 30, "why": "Job a needs it."})
    )


def test_driver_stays_until_checkpoint_is_listed(job: Path) -> None:
    (job / "fit" / SNAPSHOT).write_text("before")
    give_notice(job, attempt=2)
    with driver(job) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout
        assert "Job a needs it." in process.stdout.readline()
        # A second one, as the shell around it may pass on what it has got too.
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=3)
        (job / "fit" / SNAPSHOT).write_text("after")
        assert process.wait(timeout=BOUND_S) == signal.SIGTERM


@pytest.mark.parametrize(("attempt", "grace"), [(None, "30"), (1, "30"), (2, "")], ids=["none", "former", "no-teams"])
def test_driver_without_notice_ends_at_once(attempt: int | None, grace: str, job: Path) -> None:
    if attempt:
        give_notice(job, attempt)
    with driver(job, grace) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=BOUND_S) == signal.SIGTERM
