"""Jobs and teams of a gateway's queue."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway_parts import BOUND_S, Gateway

from mlplatform.gateway.audit.log import PLATFORM
from mlplatform.gateway.jobs.schema import JobRow
from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.jobs.submission import Submission
from mlplatform.gateway.people.store import People


async def add(gateway: Gateway, job_id: str, cpus: float, team: str | None = None, person: str | None = None) -> None:
    job = Submission.model_validate({"entrypoint": "true", "submission_id": job_id, "entrypoint_num_cpus": cpus}).job()
    job.team, job.person = team, person
    await gateway.store.add(job)


async def add_team(gateway: Gateway, name: str, **values: Any) -> None:
    await People(gateway.store.engine).add_team(name, values, PLATFORM)


async def settled(gateway: Gateway, running: set[str]) -> dict[str, JobRow]:
    """Wait until exactly these jobs run and the others have a message of the planner; return all by id."""

    def done(rows: dict[str, JobRow]) -> bool:
        runs = {job_id for job_id, row in rows.items() if row.state == State.RUNNING}
        explained = all("waits" in row.message for job_id, row in rows.items() if job_id not in running)
        return runs == running and explained

    async with asyncio.timeout(BOUND_S):
        while not done(rows := {row.id: row for row in await gateway.store.open_jobs()}):
            await asyncio.sleep(0.02)
    return rows
