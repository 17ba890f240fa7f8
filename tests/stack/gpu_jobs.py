"""Jobs that hold the GPUs which the stack's workers declare, and the time that several jobs take."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mlplatform.api.jobs import Job
from mlplatform.capacity.resources import Resources
from mlplatform.client.jobs import Jobs


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
            jobs.wait(job_id, timeout_s=60)


def seconds(jobs: Sequence[Job]) -> float:
    """Seconds from the start of the first job to the end of the last."""
    starts, ends = [job.started for job in jobs if job.started], [job.ended for job in jobs if job.ended]
    assert len(starts) == len(ends) == len(jobs)
    return (max(ends) - min(starts)).total_seconds()
