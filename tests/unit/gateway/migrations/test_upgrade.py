"""Databases of earlier versions after the upgrade: their jobs are read, continued and restarted as before."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text
from upgraded import upgraded

from mlplatform.gateway.database.base import Base
from mlplatform.gateway.jobs.listing import JobList
from mlplatform.gateway.jobs.states import Outcome, State, Verdict
from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.jobs.submission import Submission
from mlplatform.gateway.migrations.upgrade import configured, upgrade
from mlplatform.gateway.usage.ledger import milliseconds

FIXTURES = next(folder for folder in Path(__file__).parents if folder.name == "tests") / "fixtures" / "0.1.0"
FIXTURES_0_3_0 = FIXTURES.with_name("0.3.0")
YEARS_S = 100 * 365 * 86400

T = TypeVar("T")


def do(call: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(call)


def loaded(dump: Path, folder: Path) -> Iterator[JobStore]:
    """A store on a dump before the upgrade."""
    with sqlite3.connect(folder / "gateway.db") as database:
        database.executescript(dump.read_text())
    database.close()
    store = JobStore(f"sqlite:///{folder / 'gateway.db'}")
    yield store
    store.engine.dispose()


@pytest.fixture
def old(tmp_path: Path) -> Iterator[JobStore]:
    """A store on the dump of 0.1.0 before the upgrade."""
    yield from loaded(FIXTURES / "gateway.sqlite.sql", tmp_path)


@pytest.fixture
def of_0_3_0(tmp_path: Path) -> Iterator[JobStore]:
    """A store on the dump of 0.3.0 before the upgrade."""
    yield from loaded(FIXTURES_0_3_0 / "gateway.sqlite.sql", tmp_path)


@pytest.fixture
def store(old: JobStore) -> JobStore:
    """The same store after the upgrade."""
    do(upgraded(old))
    return old


def test_upgraded_jobs_and_attempts_read_unchanged(old: JobStore) -> None:
    assert do(upgraded(old)) == json.loads((FIXTURES / "jobs.json").read_text())


def test_second_upgrade_changes_nothing(store: JobStore) -> None:
    assert do(upgraded(store)) == json.loads((FIXTURES / "jobs.json").read_text())


def test_upgraded_tables_match_schema(store: JobStore) -> None:
    with store.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_jobs_and_sessions_of_0_3_0_are_kept(of_0_3_0: JobStore) -> None:
    kept = ("sessions", "nodes")
    before = rows(of_0_3_0)
    assert do(upgraded(of_0_3_0)) == json.loads((FIXTURES_0_3_0 / "jobs.json").read_text())
    after = rows(of_0_3_0)
    assert {table: after[table] for table in kept} == {table: before[table] for table in kept}
    with of_0_3_0.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_program_upgrades_the_database_alone(old: JobStore) -> None:
    env = {**os.environ, "MLPLATFORM_GATEWAY_DATABASE": str(old.engine.url)}
    program = [sys.executable, "-m", "mlplatform.gateway.migrations"]
    assert subprocess.run(program, env=env, check=False).returncode == 0
    with old.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    env["MLPLATFORM_GATEWAY_DATABASE"] = f"{old.engine.url}/none"
    failed = subprocess.run(program, env=env, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert failed.stderr.startswith("The gateway's database does not answer")


def test_downgrade_restores_tables_and_rows_of_0_1_0(old: JobStore) -> None:
    before = rows(old)
    do(upgrade(old.engine))
    with old.engine.begin() as connection:
        command.downgrade(configured(connection), "0001")
    assert rows(old) == before
    do(upgrade(old.engine))
    assert do(upgraded(old)) == json.loads((FIXTURES / "jobs.json").read_text())


def rows(store: JobStore) -> dict[str, Any]:
    """Tables of a database: columns and indexes by name, and every row."""
    with store.engine.connect() as connection:
        # Use the same connection: an in-memory SQLite database has only one.
        inspector = inspect(connection)
        return {
            table: (
                [column["name"] for column in inspector.get_columns(table)],
                sorted((str(index["name"]), index["column_names"]) for index in inspector.get_indexes(table)),
                connection.execute(text(f"SELECT * FROM {table}")).all(),
            )
            for table in inspector.get_table_names()
        }


def test_restart_limits_are_kept(old: JobStore) -> None:
    """Loss and failure are not swapped, and neither gets its default."""
    limits = {job["id"]: (job["max_restarts_on_loss"], job["max_restarts_on_failure"]) for job in do(upgraded(old))}
    assert limits == {
        "succeeded": (3, 0),
        "succeeded-after-losses": (7, 2),
        "failed": (3, 0),
        "failed-by-losses": (0, 0),
        "refused": (3, 0),
        "stopped": (3, 1),
        "stopped-while-waiting": (3, 0),
        "running": (1000, 4),
        "running-to-be-stopped": (3, 0),
        "starting": (0, 0),
        "waiting-again": (3, 3),
        "waiting": (5, 0),
    }


def test_open_jobs_are_still_open(store: JobStore) -> None:
    states = {job.id: (job.state, len(job.attempts)) for job in do(store.open_jobs())}
    assert states == {
        "running": (State.RUNNING, 3),
        "running-to-be-stopped": (State.RUNNING, 1),
        "starting": (State.STARTING, 1),
        "waiting-again": (State.WAITING, 1),
        "waiting": (State.WAITING, 0),
    }


def test_running_job_is_restarted_within_its_limit(store: JobStore) -> None:
    ended = do(store.end_attempt("running", 3, Verdict(Outcome.FAILED, "It broke.", 1), None, False))
    assert ended
    assert ended.transition.state is State.WAITING
    again = do(store.begin_attempt("running"))
    assert again
    assert again.number == 4


def test_job_without_restarts_left_fails(store: JobStore) -> None:
    ended = do(store.end_attempt("starting", 1, Verdict(Outcome.LOST, "the node of its driver has died"), None, False))
    assert ended
    assert ended.transition.state is State.FAILED


def test_requested_stop_is_remembered(store: JobStore) -> None:
    verdict = Verdict(Outcome.LOST, "the node of its driver has died")
    ended = do(store.end_attempt("running-to-be-stopped", 1, verdict, None, False))
    assert ended
    assert ended.transition.state is State.STOPPED


def test_new_job_arrives_last(store: JobStore) -> None:
    do(store.add(Submission.model_validate({"entrypoint": "true", "submission_id": "new"}).job()))
    jobs = do(JobList(store.engine, redact=False).encoded())
    assert [json.loads(job)["submission_id"] for job in jobs][-2:] == ["waiting", "new"]


def test_jobs_are_found_by_ray_ids(store: JobStore) -> None:
    running = do(store.get("running"))
    last = running.attempts[-1]
    assert do(store.job_of(last.ray_submission_id)) == "running"
    assert do(store.job_of(ray_job_id=last.ray_job_id)) == "running"
    assert do(store.get(last.ray_job_id)).id == "running"


def test_packages_and_nodes_are_remembered(store: JobStore) -> None:
    assert do(store.packages()) == {"_ray_pkg_3f1c0a5d8e2b4a67.zip", "_ray_pkg_77aa0a5d8e2b4a67.zip"}
    nodes = {node.name: (node.total, node.labels) for node in do(store.remembered_nodes(YEARS_S))}
    assert nodes == {
        "worker-0": ({"CPU": 8.0, "GPU": 1.0, "memory": 6442450944.0}, {"gpu": "true"}),
        "ray-head": ({"memory": 3221225472.0}, {}),
    }


def test_ended_jobs_without_closed_runs_are_closed_later(store: JobStore) -> None:
    unclosed = [do(store.by_sequence(sequence)) for sequence in do(store.unclosed())]
    assert {job.id for job in unclosed if job} == {
        *("failed", "failed-by-losses", "refused", "stopped", "stopped-while-waiting", "running", "waiting-again"),
    }


def ledger(store: JobStore) -> list[dict[str, Any]]:
    with store.engine.connect() as connection:
        return [dict(row) for row in connection.execute(text("SELECT * FROM usage ORDER BY job, attempt")).mappings()]


def test_ledger_has_stored_attempts_of_earlier_versions(store: JobStore) -> None:
    attempts = [(job, attempt) for job in do(upgraded(store)) for attempt in job["attempts"]]
    found = ledger(store)
    assert [(row["job_id"], row["attempt"]) for row in found] == [
        (job["id"], attempt["number"]) for job, attempt in attempts
    ]
    for row, (job, attempt) in zip(found, attempts, strict=True):
        began = milliseconds(datetime.fromisoformat(attempt["created"]))
        ended = attempt["ended"] and milliseconds(datetime.fromisoformat(attempt["ended"]))
        assert (row["user"], row["person"], row["team"]) == (job["user"], None, None)
        assert (row["borrowed"], row["outcome"]) == (False, attempt["outcome"])
        assert (row["began"], row["ended"], row["recorded"]) == (began, ended, ended)
    held = {row["job_id"]: (row["gpus"], row["cpus"]) for row in found if row["gpus"] or row["cpus"]}
    assert held == {"succeeded-after-losses": (0, 5_000), "running": (20_000, 20_000)}


def test_open_attempt_of_earlier_version_is_closed_in_the_ledger(store: JobStore) -> None:
    do(store.end_attempt("running", 3, Verdict(Outcome.SUCCEEDED, "Job finished successfully.", 0), None, False))
    (row,) = (row for row in ledger(store) if (row["job_id"], row["attempt"]) == ("running", 3))
    ended = do(store.get("running")).attempts[-1].ended
    assert ended
    assert (row["ended"], row["outcome"]) == (milliseconds(ended), "SUCCEEDED")
