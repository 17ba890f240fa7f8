"""MLflow's processes get no CPU time for a while, as beside twenty jobs that start at once on two cores."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import pytest
from failure_training import nothing_is_lost, submit, wait_until
from host import Stack, run, wait_for

from mlplatform.client.jobs import Jobs

SECONDS = 15
"""Longer than the 5 s after which a job took MLflow for absent, and uvicorn a process for hung (its default)."""


def server_processes(stack: Stack) -> set[int]:
    """Return the ids, on the host, of the processes that answer MLflow's requests."""
    listed = run("docker", "top", stack.container("mlflow"), "-eo", "pid,args").stdout.splitlines()
    return {int(line.split()[0]) for line in listed if "spawn_main" in line}


@contextmanager
def without_cpu_time(pids: Iterable[int]) -> Iterator[None]:
    """Suspend processes."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.mark.nightly
def test_job_waits_for_busy_mlflow(stack: Stack, jobs: Jobs) -> None:
    servers = server_processes(stack)
    assert servers
    with without_cpu_time(servers):
        job_id = submit(jobs, 3, 0)
        wait_for(lambda: "Running entrypoint" in jobs.logs(job_id), "the job's entry point", 60)
        wait_until(time.monotonic() + SECONDS)
        assert server_processes(stack) == servers, "a process was replaced, which takes even more CPU time"
    nothing_is_lost(stack, jobs, job_id, 3)
    assert len(jobs.attempts(job_id)) == 1, jobs.logs(job_id)
