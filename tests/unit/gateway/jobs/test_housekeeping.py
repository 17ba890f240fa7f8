"""Housekeeping after jobs, with SQLite: their runs, errors of single jobs, and which actors outlive their jobs."""

import asyncio
from typing import Any

import pytest
from stored import submitted

from mlplatform.compat import ray_actors
from mlplatform.errors import UnreachableError
from mlplatform_gateway.errors import NoSuchJobError
from mlplatform_gateway.jobs import containment, housekeeping
from mlplatform_gateway.jobs.containment import JobErrors
from mlplatform_gateway.jobs.housekeeping import Housekeeping, JobRuns
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.states import Outcome, State, Verdict
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.ray.leftovers import leftover


def test_each_final_state_closes_runs() -> None:
    assert set(housekeeping._RUN_ENDS) == {state for state in State if state.final}


async def test_failing_run_closure_does_not_block_other_jobs(
    store: JobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[tuple[str, str]] = []

    async def close_runs(_: object, run_ids: list[str], status: str, reason: str) -> int:
        if "of-broken" in run_ids:
            raise KeyError("of-broken")
        ended.extend((run_id, status) for run_id in run_ids)
        return len(run_ids)

    async def open_runs(_: object) -> set[str]:
        return {"of-broken", "of-mine", "of-nobody"}

    monkeypatch.setattr(housekeeping, "close_runs", close_runs)
    monkeypatch.setattr(housekeeping, "open_runs", open_runs)
    unused: Any = None
    tracking: Any = object()
    for job_id in ("broken", "mine", "untracked"):
        await store.add(submitted(submission_id=job_id))
        await store.begin_attempt(job_id)
        for run_id in () if job_id == "untracked" else (f"of-{job_id}", f"ended-{job_id}"):
            await JobRuns(store.engine).report(job_id, 1, run_id, False)
        await store.request_stop(job_id)
        await store.end_attempt(job_id, 1, Verdict(Outcome.STOPPED, "It was stopped."), None, False)
    keeping = Housekeeping(Services(store, *[unused] * 4, tracking))
    closing = asyncio.create_task(keeping.close_runs())
    async with asyncio.timeout(20):
        while len(await store.unclosed()) > 1:
            await asyncio.sleep(0.02)
    closing.cancel()
    left = [await store.by_sequence(sequence) for sequence in await store.unclosed()]
    assert [job.id for job in left if job] == ["broken"]
    assert ended == [("of-mine", "KILLED")]
    assert [record.getMessage() for record in caplog.records] == ["A step of job broken failed and will be retried."]


def fail(errors: JobErrors, job_id: str) -> None:
    with errors.contained(job_id):
        raise KeyError(job_id)


def test_error_is_logged_with_its_traceback_once_per_job(caplog: pytest.LogCaptureFixture) -> None:
    errors = JobErrors()
    for job_id in ("a", "a", "b"):
        fail(errors, job_id)
    assert [record.getMessage() for record in caplog.records] == [
        "A step of job a failed and will be retried.",
        "A step of job b failed and will be retried.",
    ]
    assert all(record.exc_info for record in caplog.records)


def test_persistent_error_is_logged_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(containment, "_LOG_AGAIN_SECONDS", 0.0)
    errors = JobErrors()
    for _ in range(2):
        fail(errors, "a")
    assert len(caplog.records) == 2


def test_deleted_job_is_not_reported_as_error(caplog: pytest.LogCaptureFixture) -> None:
    with JobErrors().contained("a"):
        raise NoSuchJobError("Job a does not exist")
    assert not caplog.records


def test_outage_concerns_every_job() -> None:
    with pytest.raises(UnreachableError), JobErrors().contained("a"):
        raise UnreachableError("The database does not answer.")


def actor(**changes: Any) -> dict[str, Any]:
    return {"actor_id": "a1", "class_name": "Holder", "job_id": "02000000", "is_detached": True, **changes}


def jobs(status: str, job_id: str | None = "02000000") -> dict[str, dict[str, Any]]:
    return {"raysubmit_1": {"status": status, "job_id": job_id}}


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED", "STOPPED"])
def test_detached_actor_of_ended_job_is_leftover(status: str) -> None:
    assert leftover([actor()], jobs(status)) == [actor()]


@pytest.mark.parametrize(
    ("row", "listed"),
    [
        (actor(), jobs("RUNNING")),
        (actor(), jobs("PENDING", None)),
        (actor(job_id="03000000"), jobs("SUCCEEDED")),
        (actor(job_id=None), jobs("FAILED", None)),
        (actor(is_detached=False), jobs("SUCCEEDED")),
        (actor(class_name="_StatsActor"), jobs("SUCCEEDED")),
        (actor(class_name="PlacementGroupCleaner"), jobs("FAILED")),
    ],
)
def test_other_actors_are_kept(row: dict[str, Any], listed: dict[str, dict[str, Any]]) -> None:
    assert leftover([row], listed) == []


def test_program_that_ends_actors_is_on_every_node() -> None:
    assert ray_actors.__name__.split(".")[0] == "mlplatform", "the Ray image has neither the gateway nor the stack"
