"""Helpers for tests of the embedded platform."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from mlplatform.client.jobs import Jobs
from mlplatform.contract import TAG_JOB
from mlplatform.local import processes as local_processes
from mlplatform.local.instance import Home, Instance
from mlplatform.local.platform import LocalPlatform
from mlplatform.tracking import server

JOBS = Path(__file__).parents[2] / "jobs"
SCRIPTS = Path(__file__).parents[1] / "scripts"

CURRENT_TEST = "PYTEST_CURRENT_TEST"
"""Variable in which pytest names the test."""


def completed(*command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever that is, and return its output as text."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def instance_of(local: LocalPlatform) -> Instance:
    """The record of a running platform."""
    found = Home(local.home).load()
    assert found
    return found


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


def listening(members: list[psutil.Process]) -> set[tuple[str, int]]:
    """Addresses on which the processes accept connections."""
    found = set()
    for process in members:
        with suppress(psutil.Error):
            found |= {
                (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
                for connection in process.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            }
    return found


def job_run(job_id: str, tracking_uri: str | None = None) -> Any:
    """MLflow's entity of a job's own run."""
    found = server.find_run(job_id, tracking_uri)
    assert found, f"job {job_id} has no run"
    return found


def runs_of(job_id: str) -> Any:
    """MLflow's entities of a job's runs in all experiments, by their start."""
    import mlflow

    return mlflow.search_runs(
        search_all_experiments=True,
        filter_string=f"tags.`{TAG_JOB}` = '{job_id}'",
        order_by=["start_time ASC"],
        output_format="list",
    )


def succeeded(jobs: Jobs, job_id: str, seconds: float = 120) -> str:
    """Wait until a job has succeeded; return its log."""
    job = jobs.wait(job_id, timeout_s=seconds)
    log = jobs.logs(job_id)
    assert job.status == "SUCCEEDED", (job.message, log[-3000:])
    return log
