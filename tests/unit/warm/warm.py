"""Templates and programs for the tests of warm starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from mlplatform.warm import client, notes
from mlplatform.warm.variables import OF_DRIVERS

ROOT = str(Path(client.__file__).parents[2])

_SHIM = f"import sys; sys.path.insert(0, {ROOT!r}); from mlplatform.warm.client import python; python()"


@dataclass
class Warm:
    """A running template."""

    folder: Path
    process: subprocess.Popen[bytes]
    log: Path
    python: str = sys.executable

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return a command line that starts a program warm."""
        return [self.python, "-IS", "-c", _SHIM, *arguments]

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return an environment in which programs start warm."""
        variables = {client.SOCKETS: str(self.folder), notes.REASON: str(self.log)}
        return {**inherited(), **OF_DRIVERS, **variables, **(extra or {})}

    def reasons(self) -> list[str | None]:
        """Return why each program so far started cold; None for those that started warm."""
        return [json.loads(line)["cold"] for line in self.log.read_text().splitlines()]

    def pids(self) -> dict[str, int]:
        """Return the templates' process IDs by name."""
        (base,) = psutil.Process(self.process.pid).children()
        (drivers,) = base.children()
        return {"keeper": self.process.pid, "base": base.pid, "driver": drivers.pid}

    def templates(self) -> list[Path]:
        """Return the sockets of the templates."""
        return sorted(self.folder.glob("*.sock"))


def inherited() -> dict[str, str]:
    """Return this process's environment without pytest's variable, which changes, and which packages read."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def start_template(folder: Path, environment: Mapping[str, str] | None = None, python: str = sys.executable) -> Warm:
    """Start a base template, and wait until programs can start warm."""
    folder.mkdir(mode=0o700, parents=True)
    command = [python, "-m", "mlplatform.warm", str(folder), "0"]
    with (folder.parent / "template.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment or inherited()
        )
    warm = Warm(folder, process, folder.parent / "starts.jsonl", python)
    deadline = time.monotonic() + 120
    while len(warm.templates()) < 2:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise AssertionError((folder.parent / "template.log").read_text())
        time.sleep(0.02)
    return warm


@contextmanager
def running_template(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Warm]:
    """Start a base template, and kill it at the end."""
    warm = start_template(folder, environment)
    try:
        yield warm
    finally:
        warm.process.kill()
        warm.process.wait()


def is_running(pid: int) -> bool:
    """Return whether the process has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
