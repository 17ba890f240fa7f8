"""Dev environments on the embedded platform: they are started, found and stopped; people work in a terminal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlplatform.settings.environment import environment
from mlplatform.settings.job import Settings


@pytest.fixture
def dev(reached: Settings, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """`mlplatform dev`, which returns all that it prints."""

    def types(*words: str) -> str:
        variables = environment() | reached.environment() | {"HOME": str(tmp_path), "COLUMNS": "200"}
        command = [sys.executable, "-m", "mlplatform", "dev", *words]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout + done.stderr

    yield types
    types("stop", "--name", "tries")


def test_environment_is_started_once_and_again_after_its_end(dev: Callable[..., str], reached: Settings) -> None:
    job_id = f"dev-{reached.user}-tries"
    assert f"mlplatform ssh {job_id}`" in dev("start", "--name", "tries", "--cpus", "0.1")
    again = dev("start", "--name", "tries", "--cpus", "0.1")
    assert f"mlplatform ssh {job_id}`" in again
    assert [line.split()[:2] for line in dev("list").splitlines() if job_id in line] == [[job_id, "RUNNING"]]
    assert "is stopping" in dev("stop", "--name", "tries")
    assert f"mlplatform ssh {job_id}`" in dev("start", "--name", "tries", "--cpus", "0.1")


def test_invalid_name_is_rejected_with_what_to_use(dev: Callable[..., str]) -> None:
    printed = dev("start", "--name", "My Lab")
    assert printed == "Invalid name 'My Lab': use at most 30 lower-case letters, digits and single dashes.\n"
