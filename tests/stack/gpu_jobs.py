"""Jobs that hold the GPUs which the stack's workers declare."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlplatform.client.jobs import Jobs
from mlplatform.scheduling.resources import Resources

_BOUND_S = 60


@contextmanager
def holding_gpu(jobs: Jobs, count: int) -> Iterator[list[str]]:
    """Start jobs that each ask for a GPU, and stop them at the end; those beyond the stack's two GPUs wait."""
    command = ["python", "-c", "import signal; signal.pause()"]
    with tempfile.TemporaryDirectory() as empty:
        started = [
            jobs.submit(command, Path(empty), name=f"holds-gpu-{number}", resources=Resources(gpus=1))
            for number in range(count)
        ]
    try:
        yield started
    finally:
        for job_id in started:
            jobs.stop(job_id)
        for job_id in started:
            jobs.wait(job_id, timeout_s=_BOUND_S)
