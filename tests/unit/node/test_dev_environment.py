"""Use of a dev environment, by the processes of its job."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_for

from mlplatform.node import environment, processes, ssh
from mlplatform.settings.job import settings
from mlplatform.storage import notice

JOB = "dev-ann-main"


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLPLATFORM_JOB_ID", JOB)
    monkeypatch.setenv("MLPLATFORM_ATTEMPT", "2")
    monkeypatch.setattr(ssh, "_MEMORY", tmp_path)
    settings.cache_clear()


@pytest.fixture
def terminal(started: list[subprocess.Popen[bytes]]) -> Iterator[int]:
    """A terminal with a program of the job; the file that shows what is written to it."""
    shown, inside = pty.openpty()
    started.append(subprocess.Popen(["sleep", "600"], stdin=inside))
    os.close(inside)
    yield shown
    os.close(shown)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        process.kill()
        process.wait()


def test_processes_are_found_by_variables_or_context_of_workers(started: list[subprocess.Popen[bytes]]) -> None:
    wait = "import sys; print(flush=True); sys.stdin.read()"

    def start(variables: dict[str, str], *arguments: str) -> int:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", wait, *arguments], env=variables, **pipes)
        started.append(process)
        assert process.stdout
        process.stdout.readline()
        return process.pid

    own = {"MLPLATFORM_JOB_ID": JOB, "MLPLATFORM_ATTEMPT": "2"}
    of_job = start(own)
    start({**own, "MLPLATFORM_ATTEMPT": "1"})
    in_context = '{"env_vars": {"MLPLATFORM_JOB_ID": "dev-ann-main", "MLPLATFORM_ATTEMPT": "${NUMBER}"}}'
    worker = start({"NUMBER": "2"}, f"--serialized-runtime-env-context={in_context}")
    for damaged in ("{", "[]", '{"env_vars": [1]}', '{"env_vars": {"A": 1}}'):
        start({}, f"--serialized-runtime-env-context={damaged}")
    assert {process for process, _ in processes.of_job(JOB, 2)} - {os.getpid()} == {of_job, worker}


def test_computation_and_connection_count_as_use(started: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    use = environment.Use()
    started.append(subprocess.Popen(["sleep", "600"]))
    assert not use.seen(), "a program that waits is not use"
    started.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
    wait_for(use.seen, "the computation to count")
    started[-1].kill()
    started[-1].wait()
    connection = tmp_path / f"mlplatform-ssh-{JOB}-a1b2c3"
    connection.mkdir()
    use.seen()
    assert not use.seen(), "the session has ended, and left something running"
    (connection / "client").touch()
    assert use.seen()


def test_request_to_leave_reaches_terminals_and_leaves_the_time(
    terminal: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deadline = time.time() + 1.5
    monkeypatch.setenv("MLPLATFORM_GRACE_SECONDS", "120")
    settings.cache_clear()
    monkeypatch.setattr(notice, "received", lambda: notice.Notice(2, deadline, "bob takes back a GPU."))
    environment._leave()
    assert time.time() >= deadline
    said = capsys.readouterr().out.strip()
    assert re.fullmatch(r"This dev environment ends at [\d:]{8} UTC; save your files\. bob takes back a GPU\.", said)
    assert said in os.read(terminal, 1000).decode()


def test_who_stops_it_does_not_wait(terminal: int, capsys: pytest.CaptureFixture[str]) -> None:
    environment._leave()
    assert not capsys.readouterr().out
