"""Housekeeping after jobs, with SQLite."""

import asyncio
from typing import Any

import pytest
from stored import submitted

from mlplatform_gateway.jobs import housekeeping
from mlplatform_gateway.jobs.housekeeping import Housekeeping
from mlplatform_gateway.jobs.runs import JobRuns
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.states import Outcome, State, Verdict
from mlplatform_gateway.jobs.store import JobStore


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
