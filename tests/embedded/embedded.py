"""Helpers for tests of the embedded platform."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from mlplatform.client.jobs import report_in
from mlplatform.local import processes as local_processes
from mlplatform.local.instance import Home
from mlplatform.local.platform import LocalPlatform

JOBS = Path(__file__).parents[2] / "jobs"
EPOCHS = 24
KILL_AFTER_REPORTS = 6

CURRENT_TEST = "PYTEST_CURRENT_TEST"
"""Variable in which pytest names the test."""


def processes(local: LocalPlatform) -> list[psutil.Process]:
    """All processes of a running platform."""
    instance = Home(local.home).load()
    return local_processes.members(instance.id, instance.processes) if instance else []


def command(process: psutil.Process) -> str:
    """A process's command line; empty once it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@dataclass
class Killed:
    """The main job after one of its workers was killed during training."""

    job_id: str
    status: str
    log: list[str]
    reports_before: int

    @property
    def reports(self) -> list[dict[str, float]]:
        return [report for line in self.log if (report := report_in(line))]
