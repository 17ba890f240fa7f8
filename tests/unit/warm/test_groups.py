"""Signals to the process group, or to the descendants, of what started a program, warm and cold."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from waiting import wait_for
from warm import PATIENCE_SECONDS, Warm, is_running, running_template

PROGRAM = r"""
import os, signal, subprocess, sys, time

def take(number, frame):
    # Unlike print, it may be interrupted by a handler that does the same.
    os.write(1, f"{sys.argv[1]} {number}\n".encode())

signal.signal(signal.SIGTERM, take)
if sys.argv[1] == "program":
    child = subprocess.Popen([sys.executable, __file__, "subprocess"])
print(sys.argv[1], os.getpid(), flush=True)
sys.stdin.read()
time.sleep(60)
"""

LEAVING = """
import subprocess
print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
"""

LEAVING_HALF_A_CHARACTER = """
import os, time
ready, named = os.pipe()
if os.fork() == 0:
    with open("/proc/self/comm", "wb") as file:
        file.write("\u00fc".encode()[:1])
    os.write(named, b"!")
    time.sleep(60)
os.read(ready, 1)
print("ran", flush=True)
"""


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """A template for all tests."""
    with running_template(tmp_path_factory.mktemp("warm") / "sockets") as running:
        running.silence_s = PATIENCE_SECONDS
        yield running


@pytest.fixture(params=["warm", "cold"])
def start(request: pytest.FixtureRequest, warm: Warm, tmp_path: Path) -> Iterator["Start"]:
    """Start programs, each in a process group of its own."""
    starter = Start(warm, request.param == "warm", tmp_path)
    yield starter
    for process in starter.processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)


class Start:
    """Starts programs warm or cold, as Ray starts a job's command."""

    def __init__(self, warm: Warm, is_warm: bool, folder: Path) -> None:
        self.warm = warm
        self.is_warm = is_warm
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def __call__(self, text: str, *arguments: str) -> subprocess.Popen[str]:
        path = self.folder / "program.py"
        path.write_text(text)
        words = [str(path), *arguments]
        process = subprocess.Popen(
            self.warm.command(words) if self.is_warm else [sys.executable, *words],
            env=self.warm.environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        return process


def lines(process: subprocess.Popen[str], count: int) -> dict[str, int]:
    """Return the first lines of the output, each a name and a number."""
    assert process.stdout
    pairs = [process.stdout.readline().split() for _line in range(count)]
    return {name: int(number) for name, number in pairs}


def test_signal_to_group_reaches_program_and_subprocess(start: Start) -> None:
    process = start(PROGRAM, "program")
    assert lines(process, 2).keys() == {"program", "subprocess"}
    os.killpg(process.pid, signal.SIGTERM)
    assert lines(process, 2) == {"program": signal.SIGTERM, "subprocess": signal.SIGTERM}


def test_signal_to_all_descendants_reaches_subprocess(start: Start) -> None:
    process = start(PROGRAM, "program")
    lines(process, 2)
    # As Ray's JobSupervisor stops a job.
    for found in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        found.send_signal(signal.SIGTERM)
    assert lines(process, 2) == {"program": signal.SIGTERM, "subprocess": signal.SIGTERM}


def test_signal_to_program_alone_spares_subprocess(start: Start) -> None:
    process = start(PROGRAM, "program")
    lines(process, 2)
    process.send_signal(signal.SIGTERM)
    assert lines(process, 1) == {"program": signal.SIGTERM}
    # Whatever the subprocess got would come before this.
    os.killpg(process.pid, signal.SIGTERM)
    assert lines(process, 2) == {"program": signal.SIGTERM, "subprocess": signal.SIGTERM}


def test_killed_group_takes_subprocess_along(start: Start) -> None:
    process = start(PROGRAM, "program")
    found = lines(process, 2)
    os.killpg(process.pid, signal.SIGKILL)
    wait_for(lambda: not any(is_running(pid) for pid in found.values()), "program and subprocess to end")


def test_killed_group_takes_along_what_ended_program_left(start: Start) -> None:
    process = start(LEAVING)
    assert process.stdout
    left = int(process.stdout.readline())
    assert process.wait(timeout=20) == 0
    assert is_running(left)
    os.killpg(process.pid, signal.SIGKILL)
    wait_for(lambda: not is_running(left), "the subprocess to end")


def test_name_cut_within_character_does_not_repeat_program(start: Start) -> None:
    process = start(LEAVING_HALF_A_CHARACTER)
    assert process.stdout
    assert process.stdout.readline() == "ran\n"
    assert process.wait(timeout=20) == 0
    # It reaches the subprocess, which holds the output open.
    os.killpg(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == ""


def test_group_is_empty_after_last_subprocess(start: Start) -> None:
    process = start(LEAVING)
    assert process.stdout
    left = int(process.stdout.readline())
    assert process.wait(timeout=20) == 0
    os.kill(left, signal.SIGTERM)

    def is_empty() -> bool:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_for(is_empty, "the group to be empty")
