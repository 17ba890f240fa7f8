"""Writing jobs into a store, step by step."""

import asyncio
from collections.abc import Coroutine
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from mlplatform_gateway.database.engine import connect
from mlplatform_gateway.database.migrations.upgrade import upgrade
from mlplatform_gateway.jobs.details import JobList
from mlplatform_gateway.jobs.schema import AttemptRow, JobRow
from mlplatform_gateway.jobs.states import Outcome, Transition, Verdict
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.jobs.submission import Submission

T = TypeVar("T")

LOST = Verdict(Outcome.LOST, "the node of its driver has died", 1, "JOB_SUPERVISOR_ACTOR_DIED")
FAILED = Verdict(Outcome.FAILED, "It broke.", 1, "JOB_ENTRYPOINT_COMMAND_ERROR")
SUCCEEDED = Verdict(Outcome.SUCCEEDED, "Job finished successfully.", 0)
STOPPED = Verdict(Outcome.STOPPED, "Job was intentionally stopped.")


def do(call: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(call)


@cache
def _empty_database() -> bytes:
    """A database with all tables and no rows. Writing it takes ten times as long as copying it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.db"
        engine = connect(f"sqlite:///{path}")
        upgrade(engine)
        engine.dispose()
        return path.read_bytes()


def database_in(folder: Path) -> str:
    """Write a gateway's database with all tables and no rows into a folder; return its URL."""
    path = folder / "gateway.db"
    path.write_bytes(_empty_database())
    return f"sqlite:///{path}"


def add(store: JobStore, job_id: str = "mine", **metadata: str) -> JobRow:
    job = submitted(submission_id=job_id, metadata=metadata)
    do(store.add(job))
    return job


def submitted(**fields: Any) -> JobRow:
    return Submission.model_validate({"entrypoint": "true", **fields}).job()


def begin(store: JobStore, job_id: str = "mine") -> AttemptRow:
    attempt = do(store.begin_attempt(job_id))
    assert attempt is not None
    return attempt


def ray(status: str = "RUNNING", driver: str | None = "01000000") -> dict[str, Any]:
    """Ray's details of a driver."""
    info = {"id": driver, "node_ip_address": "10.0.0.1", "pid": "7"} if driver else None
    where = {"driver_node_id": "n" * 56, "driver_agent_http_address": "http://10.0.0.1:52365"}
    return {"status": status, "job_id": driver, "driver_info": info, **where}


def end(
    store: JobStore, verdict: Verdict, job_id: str = "mine", number: int = 1, resumes: bool = False
) -> Transition | None:
    return do(store.end_attempt(job_id, number, verdict, None, resumes))


def listed_ids(store: JobStore) -> list[str]:
    return [entry.job.id for entry in do(JobList(store.engine).entries())]
