"""The list of all jobs: its order, its contents, and that ended jobs are read once."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event
from stored import LOST, SUCCEEDED, add, begin, do, end, ray, submitted

from mlplatform_gateway.jobs import details
from mlplatform_gateway.jobs.details import JobList, job_details
from mlplatform_gateway.jobs.store import JobStore


@pytest.fixture
def jobs(store: JobStore) -> JobList:
    return JobList(store.engine)


def shown(jobs: JobList, redact: bool = False) -> list[dict[str, Any]]:
    return [json.loads(entry.text(redact)) for entry in do(jobs.entries())]


def states(jobs: JobList) -> dict[str, str]:
    return {job["submission_id"]: job["status"] for job in shown(jobs)}


def finish(store: JobStore, job_id: str) -> None:
    add(store, job_id)
    begin(store, job_id)
    end(store, SUCCEEDED, job_id)


def rows_read(store: JobStore, call: Callable[[], object]) -> int:
    """Rows of jobs that a call reads with all their columns."""
    rows = 0

    def count(*event: Any) -> None:
        nonlocal rows
        cursor, statement = event[1], event[2]
        if "job_metadata" in statement:
            rows += len(cursor.connection.execute(statement, event[3]).fetchall())

    event.listen(store.engine, "after_cursor_execute", count)
    call()
    event.remove(store.engine, "after_cursor_execute", count)
    return rows


def test_jobs_are_listed_in_submission_order(store: JobStore, jobs: JobList) -> None:
    for job_id in ("c", "a", "b"):
        add(store, job_id)
    begin(store, "a")
    end(store, SUCCEEDED, "a")
    for _ in range(2):
        assert [job["submission_id"] for job in shown(jobs)] == ["c", "a", "b"]
    assert [job.id for job in do(store.open_jobs())] == ["c", "b"]


def test_list_and_detail_of_job_agree(store: JobStore, jobs: JobList) -> None:
    for job_id in ("waits", "runs", "again"):
        add(store, job_id)
    for job_id, number in (("runs", 1), ("again", 1), ("again", 2)):
        begin(store, job_id)
        do(store.seen(job_id, number, ray(driver=f"0{number}000000"), "w0"))
        if (job_id, number) == ("again", 1):
            end(store, LOST, "again")
    rows = [do(store.get(job_id)) for job_id in ("waits", "runs", "again")]
    alone = [job_details(row, row.last_attempt) for row in rows]
    assert shown(jobs) == alone
    assert [one["job_id"] for one in alone] == [None, "01000000", "02000000"]


def test_open_jobs_are_listed_as_they_are_now(store: JobStore, jobs: JobList) -> None:
    add(store, "mine")
    assert states(jobs) == {"mine": "PENDING"}
    begin(store, "mine")
    do(store.seen("mine", 1, ray(), "w0"))
    assert states(jobs) == {"mine": "RUNNING"}
    end(store, SUCCEEDED, "mine")
    assert states(jobs) == {"mine": "SUCCEEDED"}


def test_ended_jobs_are_read_once(store: JobStore, jobs: JobList) -> None:
    for job_id in ("one", "two"):
        finish(store, job_id)
    add(store, "open")
    assert rows_read(store, lambda: states(jobs)) == 3
    assert rows_read(store, lambda: states(jobs)) == 1
    assert states(jobs) == {"one": "SUCCEEDED", "two": "SUCCEEDED", "open": "PENDING"}


def test_id_of_deleted_job_can_be_listed_again(store: JobStore, jobs: JobList) -> None:
    for job_id in ("one", "two"):
        finish(store, job_id)
    assert states(jobs) == {"one": "SUCCEEDED", "two": "SUCCEEDED"}
    do(store.delete("one"))
    assert states(jobs) == {"two": "SUCCEEDED"}
    add(store, "one")
    assert states(jobs) == {"two": "SUCCEEDED", "one": "PENDING"}


def test_named_jobs_are_listed_like_all_jobs(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(store, "one")
    add(store, "open")
    named = shown(JobList(store.engine))
    monkeypatch.setattr(details, "_NAMED", 1)
    assert shown(JobList(store.engine)) == named


def test_variables_are_hidden_from_browsers_only(store: JobStore, jobs: JobList) -> None:
    do(store.add(submitted(runtime_env={"env_vars": {"TOKEN": "secret"}})))
    assert shown(jobs)[0]["runtime_env"]["env_vars"] == {"TOKEN": "secret"}
    assert shown(jobs, redact=True)[0]["runtime_env"]["env_vars"] == {"TOKEN": "<redacted>"}
