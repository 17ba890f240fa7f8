"""The gateway's parts with SQLite and folders, a stand-in for the Ray head, and the jobs and teams of its queue."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from mlplatform.capacity.resources import Node
from mlplatform.storage.objects import open_store
from mlplatform_gateway.audit.store import PLATFORM
from mlplatform_gateway.jobs.attempt_tokens import AttemptTokens
from mlplatform_gateway.jobs.loop import Reconciler
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.starting import Limits
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.jobs.submission import Submission
from mlplatform_gateway.logs.store import JobLogs
from mlplatform_gateway.monitoring.outages import Outages
from mlplatform_gateway.packages.store import Packages
from mlplatform_gateway.people.store import People
from mlplatform_gateway.queue.planner.queue import Rules
from mlplatform_gateway.ray.head import ClusterSnapshot
from mlplatform_gateway.ray.utilisation import UtilisationSource

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
    stopped: set[str] = field(default_factory=set)
    """Attempts that it was asked to stop."""

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
        self.stopped.add(ray_submission_id)
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
    services: Services
    reconciler: Reconciler

    @property
    def store(self) -> JobStore:
        return self.services.store

    @property
    def logs(self) -> JobLogs:
        return self.services.logs

    async def submit(self, person: str | None = None, team: str | None = None, **fields: Any) -> None:
        """Submit the job `mine`, or the one with the given id."""
        job = Submission.model_validate({"entrypoint": "true", "submission_id": "mine", **fields}).job()
        job.person, job.team = person, team
        await self.store.add(job)
        self.reconciler.wake()

    async def started(self, **fields: Any) -> None:
        """Submit a job and wait until it runs."""
        await self.submit(**fields)
        await self.until_state(State.RUNNING, fields.get("submission_id", "mine"))

    async def end(self, status: str = "SUCCEEDED", **more: Any) -> None:
        """Let the attempt that was started last end in Ray, and wait until its job has ended so."""
        self.head.jobs[self.head.submitted[-1]] = ray(status, **more)
        await self.until_state(State(status))

    async def until_job(self, condition: Callable[[JobRow], object], job_id: str = "mine") -> JobRow:
        """Wait for a condition of a job; return the job."""
        async with asyncio.timeout(BOUND_S):
            while not condition(job := await self.store.get(job_id)):
                await asyncio.sleep(0.02)
        return job

    async def until_state(self, state: State, job_id: str = "mine") -> JobRow:
        return await self.until_job(lambda job: job.state == state, job_id)

    async def until_left(self, job_id: str = "mine") -> JobRow:
        """Wait until a job was preempted once."""
        return await self.until_job(lambda job: job.preemptions == 1, job_id)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(work) for work in (self.reconciler.run(), self.logs.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def parts(folder: Path, rules: Rules, use: Any = None) -> Gateway:
    """Build a gateway whose control loop does not run, for the database of a folder.

    Args:
        folder: has the database, and gets the files.
        rules: durations of the queue.
        use: source of what the nodes measure; None for that of the head.
    """
    (folder / "files").mkdir(exist_ok=True)
    head = StandInHead()
    store = JobStore(f"sqlite:///{folder}/gateway.db")
    logs = JobLogs(open_store(str(folder / "files"), "FILES"), store.job_of)
    packages = Packages(str(folder / "files"), 1000, folder)
    made_up: Any = head
    tokens = AttemptTokens(store.engine, ADDRESS)
    services = Services(store, made_up, logs, packages, Outages({}))
    reconciler = Reconciler(services, use or UtilisationSource(made_up), tokens, Limits(4, 1200.0, rules))
    return Gateway(head, services, reconciler)


async def add(gateway: Gateway, job_id: str, cpus: float, team: str | None = None, person: str | None = None) -> None:
    await gateway.submit(person, team, submission_id=job_id, entrypoint_num_cpus=cpus)


async def add_team(gateway: Gateway, name: str, **values: Any) -> None:
    await People(gateway.store.engine).add_team(name, values, PLATFORM)


async def add_alice(gateway: Gateway) -> None:
    """Add team vision with alice."""
    await add_team(gateway, "vision")
    await People(gateway.store.engine).add("alice", PLATFORM, "vision")


async def variables_of(gateway: Gateway, person: str | None = "alice", **variables: str) -> dict[str, str]:
    """Let the job `mine` of a person run; return the variables that Ray got."""
    team = "vision" if person else None
    await gateway.started(person=person, team=team, runtime_env={"env_vars": variables})
    return gateway.head.requests[-1]["runtime_env"]["env_vars"]


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
