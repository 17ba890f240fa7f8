"""The gateway's parts with SQLite and folders, and a stand-in for the Ray head."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mlplatform.gateway.control.reconciler import Reconciler
from mlplatform.gateway.jobs.states import State
from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.jobs.submission import Submission
from mlplatform.gateway.logs.store import JobLogs
from mlplatform.gateway.upstream.ray import ClusterSnapshot
from mlplatform.scheduling.resources import Node

BOUND_S = 60
ADDRESS = "http://gateway:8265"
"""Address of the gateway for jobs."""

NODE = Node("ray-worker-0", True, {"CPU": 4.0}, {"CPU": 4.0}, {})


@dataclass
class StandInHead:
    """Stand-in for the Ray head; `jobs` contains the jobs that it knows."""

    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    ignores_stop: bool = False
    refusal: Exception | None = None
    supervised: bool = True
    status: str = "RUNNING"
    wanted: list[dict[str, float]] = field(default_factory=list)
    """Bundles of a pending placement group."""

    dead: dict[str, datetime] = field(default_factory=dict)
    """Times of death of nodes."""

    node: Node = NODE
    """The only node; what is free does not change by itself."""

    async def look(self) -> ClusterSnapshot:
        return ClusterSnapshot(dict(self.jobs), [], {"n": "ray-worker-0"}, frozenset({"n"}), self.dead, [self.node])

    async def submit(self, request: dict[str, Any]) -> None:
        self.submitted.append(request["submission_id"])
        self.requests.append(request)
        if self.refusal:
            raise self.refusal
        self.jobs[request["submission_id"]] = ray(self.status)

    async def living_actors(self) -> list[dict[str, Any]]:
        return []

    async def pending_shapes(self) -> list[list[dict[str, float]]]:
        return [self.wanted] if self.wanted else []

    async def pending_requests(self) -> list[tuple[str, list[dict[str, float]]]]:
        return [("02000000", self.wanted)] if self.wanted else []

    async def has_package(self, name: str) -> bool:
        return False

    async def has_supervisor(self, ray_submission_id: str) -> bool:
        return self.supervised

    async def node_answers(self, agent: str) -> bool:
        return True

    async def stop(self, ray_submission_id: str) -> None:
        if ray_submission_id in self.jobs and not self.ignores_stop:
            self.jobs[ray_submission_id] = ray("STOPPED")

    async def delete(self, ray_submission_id: str) -> bool:
        return True

    async def start_job_manager(self) -> None:
        pass


def ray(status: str, **more: Any) -> dict[str, Any]:
    """Ray's job details of an attempt."""
    where = {"driver_node_id": "n", "driver_agent_http_address": "http://10.0.0.1:52365"}
    return {"status": status, "type": "SUBMISSION", "job_id": None, "driver_info": None, **where, **more}


@dataclass
class Gateway:
    """The gateway's parts behind its HTTP API."""

    head: StandInHead
    store: JobStore
    logs: JobLogs
    reconciler: Reconciler

    async def submit(self, **fields: Any) -> None:
        await self.store.add(Submission.model_validate({"entrypoint": "true", "submission_id": "mine", **fields}).job())
        self.reconciler.wake()

    async def state(self) -> str:
        return (await self.store.get("mine")).state

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(BOUND_S):
            while not await condition():
                await asyncio.sleep(0.02)

    async def until_state(self, state: State) -> None:
        async def reached() -> bool:
            return await self.state() == state

        await self.until(reached)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(work) for work in (self.reconciler.run(), self.logs.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def is_true(value: object) -> bool:
    return bool(value)
