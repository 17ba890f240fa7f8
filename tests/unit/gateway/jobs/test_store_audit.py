"""The audit log of the store of jobs, and the rows of deleted jobs."""

import json
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError
from stored import STOPPED, SUCCEEDED, add, begin, do, end, listed_ids, ray, submitted

from mlplatform_gateway.audit.store import Actor, AuditLog
from mlplatform_gateway.errors import JobExistsError, JobIsOpenError, NoSuchJobError
from mlplatform_gateway.jobs.overview import JobOverview
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.store import JobStore

ADA = Actor("ada", "token", "10.0.0.7")


def audited(store: JobStore) -> list[tuple[str, str, str, Any, Any]]:
    """Principal, verb, object, before and after of each row of the audit log."""
    return [
        (row.principal, row.verb, row.object, *(text and json.loads(text) for text in (row.before, row.after)))
        for row in do(AuditLog(store.engine).read(100))
    ]


def test_action_without_effect_is_not_recorded(store: JobStore) -> None:
    add(store)
    with pytest.raises(JobExistsError):
        add(store)
    with pytest.raises(JobIsOpenError):
        do(store.delete("mine", ADA))
    begin(store)
    for _ in range(2):
        do(store.request_stop("mine", ADA))
    end(store, STOPPED)
    do(store.request_stop("mine", ADA))
    assert [verb for _, verb, *_ in audited(store)] == ["submit", "stop"]


def test_action_is_undone_if_it_cannot_be_recorded(store: JobStore) -> None:
    add(store)
    with store.engine.begin() as connection:
        connection.execute(text("CREATE TRIGGER none BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'full'); END"))
    for action in (store.add(submitted(submission_id="more")), store.request_stop("mine")):
        with pytest.raises(DatabaseError, match="full"):
            do(action)
    assert listed_ids(store) == ["mine"]
    assert do(store.get("mine")).state == State.WAITING


def test_long_entry_point_is_recorded_in_part(store: JobStore) -> None:
    do(store.add(submitted(entrypoint="é" * 50_000)))
    with store.engine.connect() as connection:
        assert len(str(connection.scalar(text("SELECT after FROM audit")))) < 8000


def test_deleted_job_keeps_its_row(store: JobStore) -> None:
    job = submitted(submission_id="mine", entrypoint="python train.py", runtime_env={"env_vars": {"KEY": "secret"}})
    do(store.add(job))
    do(store.request_stop("mine"))
    do(store.delete("mine"))
    with store.engine.connect() as connection:
        row = connection.execute(text("SELECT * FROM jobs")).one()
    assert (row.id, row.sequence, row.entrypoint) == (f"mine~{job.sequence}", job.sequence, "python train.py")
    assert row.deleted
    assert "KEY" in row.runtime_env
    assert "secret" not in row.runtime_env


def test_deleted_job_is_hidden_everywhere(store: JobStore) -> None:
    environment = {"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip"}
    job = submitted(submission_id="mine", runtime_env=environment)
    do(store.add(job))
    begin(store)
    do(store.seen("mine", 1, ray(driver="01000000"), "a"))
    end(store, SUCCEEDED)
    do(store.delete("mine"))
    for job_id in ("mine", f"mine~{job.sequence}", "01000000"):
        with pytest.raises(NoSuchJobError):
            do(store.get(job_id))
        with pytest.raises(NoSuchJobError):
            do(store.delete(job_id))
    assert listed_ids(store) == []
    assert do(store.packages()) == set()
    assert do(store.unclosed()) == []
    assert do(JobOverview(store.engine).read()).ended == []
    totals = do(JobOverview(store.engine).totals())
    assert totals.jobs == {}
    assert totals.attempts["SUCCEEDED"] == 0


def test_id_can_be_deleted_again(store: JobStore) -> None:
    for _ in range(2):
        add(store)
        do(store.request_stop("mine"))
        do(store.delete("mine"))
    with store.engine.connect() as connection:
        assert len(connection.execute(text("SELECT id FROM jobs WHERE deleted IS NOT NULL")).all()) == 2
