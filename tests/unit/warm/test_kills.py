"""Templates, clients and programs are killed at random moments: no other program is lost, and nothing remains."""

import ctypes
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import pytest
from waiting import wait_for
from warm import Warm, start_template

from mlplatform_warm.waiting import exit_status

ROUNDS, MANY_ROUNDS = 10, 40
PROGRAMS = 6
REMAINING_SECONDS = 10

PR_SET_CHILD_SUBREAPER = 36

PROGRAM = """
import os, subprocess, sys, time
number, end, pause = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
print(os.getpid(), flush=True)
text = sys.stdin.read()
time.sleep(pause)
output = subprocess.run(["echo", "from", "subprocess"], capture_output=True, text=True).stdout
with open(f"{number}.txt", "a") as file:
    file.write("done")
print(number, text, output, flush=True)
ends = [sys.exit, sys.exit, os._exit, lambda code: os.execvp("sh", ["sh", "-c", f"exit {code}"])]
ends[end](end * 7) if end < 4 else os.kill(os.getpid(), 10)
"""


class Family:
    """Descendants of this process since the start of a test, including those whose parents have died."""

    def __init__(self) -> None:
        self._before = {process.pid for process in psutil.Process().children(recursive=True)}
        self.started: set[int] = set()
        """Children that an object of `subprocess` waits for."""

    def reap(self) -> None:
        """Reap the orphans that have ended, as init does."""
        for process in psutil.Process().children():
            if process.pid not in self._before | self.started:
                with suppress(psutil.NoSuchProcess, ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)

    def remaining(self) -> list[str]:
        """Return the descendants that have not ended."""
        self.reap()
        found = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if process.pid not in self._before and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {process.cmdline()}")
        return found


@dataclass
class Run:
    """A program, and everything about it that a test compares."""

    number: int
    end: int
    process: subprocess.Popen[str]
    folder: Path
    killed: set[int] = field(default_factory=set)
    """Signals that its client or the program was sent."""

    pid: int = 0
    """Process ID that the program printed; 0 if it did not get so far."""

    output: str = ""

    def finish(self, family: Family) -> None:
        """Wait for its end."""
        wait_for(lambda: family.reap() or self.process.poll() is not None, "the end of a program", 60)
        head, _line_end, self.output = self.process.communicate(timeout=60)[0].partition("\n")
        self.pid = int(head or 0)

    def is_complete(self) -> bool:
        """Return whether it has done, once, everything that it does after a cold start."""
        status = self.end * 7 if self.end < 4 else -signal.SIGUSR1
        done = self.folder / f"{self.number}.txt"
        wrote = done.read_text() if done.exists() else ""
        output = f"{self.number} input {self.number} from subprocess\n\n"
        return (self.process.returncode, self.output, wrote) == (status, output, "done")


@dataclass
class Round:
    """Programs that run, and processes that are killed, at random moments."""

    warm: Warm
    family: Family
    rng: random.Random
    folder: Path
    templates: dict[str, int]
    runs: list[Run] = field(default_factory=list)
    killed: dict[int, int] = field(default_factory=dict)
    """Process IDs of killed templates and programs, and the signals."""

    def start(self, number: int, end: int) -> None:
        """Start a program, whose input fits in the pipe."""
        process = subprocess.Popen(
            self.warm.command(["-c", PROGRAM, str(number), str(end), str(self.rng.uniform(0, 0.3))]),
            cwd=self.folder, env=self.warm.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.family.started.add(process.pid)
        assert process.stdin
        process.stdin.write(f"input {number}")
        process.stdin.close()
        process.stdin = None
        self.runs.append(Run(number, end, process, self.folder))

    def kill(self, name: str) -> None:
        """Kill a template, or one of the programs or clients; if there is none, nothing."""
        number = self.rng.choice([signal.SIGKILL, signal.SIGTERM])
        with suppress(psutil.NoSuchProcess, ProcessLookupError, IndexError):
            if name == "client":
                run = self.rng.choice([run for run in self.runs if run.process.poll() is None])
                run.killed.add(number)
                run.process.send_signal(number)
                return
            programs = psutil.Process(self.templates["driver"]).children()
            pid = self.templates.get(name) or self.rng.choice(programs).pid
            self.killed[pid] = number
            os.kill(pid, number)

    def play(self, ends: int) -> None:
        """Start all programs and kill some processes within a second; wait for the programs' ends.

        Args:
            ends: number of different ends of the programs.
        """
        rng = self.rng
        acts: list[tuple[float, Callable[[], None]]] = [
            (rng.uniform(0, 0.3), partial(self.start, number, number % ends)) for number in range(PROGRAMS)
        ]
        victims = rng.sample([*self.templates, "program", "client"], rng.choice([1, 1, 2, 3]))
        acts += [(rng.uniform(0, 0.8), partial(self.kill, name)) for name in victims]
        began = time.monotonic()
        for moment, act in sorted(acts, key=lambda planned: planned[0]):
            time.sleep(max(0, began + moment - time.monotonic()))
            act()
        for run in self.runs:
            run.finish(self.family)

    def judge(self) -> None:
        """Assert that every program is complete, unless it or its client was killed."""
        programs = {pid: number for pid, number in self.killed.items() if pid not in self.templates.values()}
        for run in self.runs:
            if number := programs.pop(run.pid, None):
                run.killed.add(number)
        for run in self.runs:
            if run.is_complete():
                continue
            signalled = -run.process.returncode
            if not run.killed and run.pid == 0 and signalled in programs.values():
                # The killed process had not come to its first line.
                programs.clear()
                continue
            assert signalled in run.killed, (run, self.killed)


@pytest.fixture
def family() -> Iterator[Family]:
    """Make this process the parent of all orphans among its descendants."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield Family()
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def ends() -> int:
    """Number of the programs' ends that a client sees when the template has died: two, unless the kernel helps."""
    if (pid := os.fork()) == 0:
        os._exit(3)
    pidfd = os.pidfd_open(pid)
    os.waitpid(pid, 0)
    status = exit_status(pidfd)
    os.close(pidfd)
    assert status in (None, 3 << 8)
    return PROGRAMS if status else 2


@pytest.mark.parametrize(
    "seed", [*range(ROUNDS), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(ROUNDS, MANY_ROUNDS))]
)
def test_kills_lose_no_other_program(seed: int, ends: int, family: Family, tmp_path: Path) -> None:
    warm = start_template(tmp_path / "sockets")
    family.started.add(warm.process.pid)
    # The first program waits until the template has loaded and serves.
    subprocess.run(warm.command(["-c", ""]), env=warm.environment(), check=True, timeout=60)
    rng = random.Random(seed)  # noqa: S311 - reproducible
    played = Round(warm, family, rng, tmp_path, warm.pids())
    files = psutil.Process(played.templates["driver"]).num_fds()
    played.play(ends)
    played.judge()
    if not played.killed.keys() & played.templates.values():
        drivers = psutil.Process(played.templates["driver"])
        wait_for(lambda: drivers.num_fds() == files, "the template to close the files of ended programs")
    warm.kill()
    wait_for(lambda: not family.remaining(), "all processes to end", REMAINING_SECONDS)
    # The kernel removes the sockets of a killed process some time after the process.
    wait_for(
        lambda: str(warm.folder) not in Path("/proc/net/unix").read_text(), "all sockets to end", REMAINING_SECONDS
    )
