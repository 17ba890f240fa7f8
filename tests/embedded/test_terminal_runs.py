"""A lesson started in a terminal, as in JupyterLab: without Ray, stopped with Ctrl-C, started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import mlflow
import pytest
import stand_in
from embedded import JOBS, completed
from mlflow.entities import Run
from waiting import wait_for

from mlplatform.settings.job import Settings

FOLDER = JOBS / "food11"
COMMAND = [sys.executable, "tracked.py", "--size=32"]


@pytest.fixture
def terminal(environment: Settings, tmp_path: Path) -> dict[str, str]:
    """Environment of the notebook's shell: MLflow's address and the photos, without Ray or a job."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLPLATFORM_JOB"))}
    return {**variables, "FOOD11_DATA_DIR": str(stand_in.write(tmp_path))}


def run_in(log: str) -> Run:
    """The run that the lesson printed."""
    name = re.search(r"^Run: .* \((\w+)\)$", log, re.MULTILINE)
    assert name, log[-3000:]
    return mlflow.get_run(name[1])


@pytest.mark.nightly
def test_next_run_starts_cleanly_after_ctrl_c(terminal: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "first.log"
    with log.open("w") as output:
        # More epochs than the test has time for, so that only Ctrl-C ends it.
        endless = [*COMMAND, "--head-epochs=100000"]
        first = subprocess.Popen(endless, cwd=FOLDER, env=terminal, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: "epoch 1: " in log.read_text() or first.poll() is not None, "two epochs", 240)
        assert first.poll() is None, log.read_text()
        first.send_signal(signal.SIGINT)
        assert first.wait(60) != 0
    finally:
        first.kill()
    shown = log.read_text()
    assert "Stopped: its run is KILLED" in shown
    assert "Traceback" not in shown
    stopped = run_in(shown)
    assert stopped.info.status == "KILLED"
    assert stopped.data.metrics["val_loss"] > 0, "metrics logged before Ctrl-C are missing"

    second = completed(*COMMAND, "--head-epochs=1", "--epochs=0", cwd=FOLDER, env=terminal, timeout=240)
    assert second.returncode == 0, second.stderr[-3000:]
    clean = run_in(second.stdout)
    assert clean.info.run_id != stopped.info.run_id
    assert clean.info.status == "FINISHED"
    assert "test_accuracy" in clean.data.metrics
    assert "mlplatform.job_id" not in clean.data.tags
    assert mlflow.get_run(stopped.info.run_id).info.status == "KILLED", "the second run changed the first one"
