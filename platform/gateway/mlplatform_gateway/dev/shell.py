"""Connections into running jobs: Ray's agent on the node turns an HTTP request into an SSH connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from mlplatform.contract import SSH
from mlplatform_gateway.errors import NoShellError
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.ray.head import RayHead

PART_BYTES = 1 << 16


@asynccontextmanager
async def shell(head: RayHead, job: JobRow, key: str, rank: int | None = None) -> AsyncIterator[Any]:
    """Yield a network stream (httpx) to an SSH server in a job.

    Args:
        key: public key of the client.
        rank: of the job's training; None for its entry point.

    Raises:
        NoShellError: the job does not run, or its running training has no such rank.
        UnreachableError: Ray's head or the node's agent is unavailable.
    """
    attempt = running(job)
    agent, process = await _place(head, attempt, rank)
    given = {"job": job.id, "attempt": str(attempt.number), "key": key, **process}
    async with head.upgraded(agent, SSH, **given) as stream:
        yield stream


def running(job: JobRow) -> AttemptRow:
    """Return the attempt of a job that runs; raise NoShellError if it does not."""
    attempt = job.last_attempt
    if State(job.state) is not State.RUNNING or attempt is None or not attempt.agent:
        raise NoShellError(f"Job {job.id} is {job.state}; a shell can be opened while it runs.")
    return attempt


async def _place(head: RayHead, attempt: AttemptRow, rank: int | None) -> tuple[str, dict[str, str]]:
    """Return the address of an agent, and the process there: the entry point, or a rank of the job's training."""
    agent = str(attempt.agent)
    if rank is None:
        return agent, {"pid": "", "gpus": ""}
    worker = await head.training_worker(attempt.ray_job_id or "", rank)
    if worker is None:
        raise NoShellError(f"Job {attempt.job_id} has no training of Ray Train with a rank {rank} that runs.")
    # The agents of a cluster have the same port.
    there = f"http://{worker['node_ip']}:{urlsplit(agent).port}"
    return there, {"pid": str(worker["pid"]), "gpus": ",".join(map(str, worker["gpu_ids"]))}


async def until_one_ends(*ways: Coroutine[Any, Any, object]) -> None:
    """Run the ways of a connection until one of them ends, and cancel the others."""
    tasks = [asyncio.create_task(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
