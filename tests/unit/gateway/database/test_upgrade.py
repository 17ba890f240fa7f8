"""Upgrade of the gateway's database: rows are kept, and databases of unknown versions are refused and not changed."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import produce_migrations, render_python_code
from alembic.migration import MigrationContext
from sqlalchemy import text

from mlplatform.errors import StorageError
from mlplatform_gateway.database.engine import Base
from mlplatform_gateway.database.migrations.upgrade import upgrade
from mlplatform_gateway.jobs.store import JobStore

FIRST = Path(__file__).parents[3] / "fixtures" / "r0001.sql"
"""Tables of the first revision, as SQLite dumps them."""

ROWS = (
    """INSERT INTO jobs (sequence, id, "user", person, team, entrypoint, runtime_env, job_metadata, entrypoint_request,
    workers, wait_for_capacity, max_restarts_on_loss, max_restarts_on_failure, limit_s, job_class, state, message,
    losses, failures, preemptions, stop_requested, created, not_before, runs_closed)
    VALUES (7, 'kept', 'ada', 'ada', 'vision', 'python train.py', '{"env_vars": {"A": "größer"}}', '{"user": "ada"}',
    '{"entrypoint_num_gpus": 1}', '{"count": 2, "cpus": 1, "gpus": 0}', false, 5, 2, 3600.5, 'urgent', 'RUNNING',
    'Job is currently running.', 1, 0, 0, false, '2026-12-01 10:00:00', '2026-12-01 10:00:00', false)""",
    """INSERT INTO attempts (job_id, number, ray_submission_id, created, accepted, running, grace_s, leave_fails, node,
    driver, in_ray, runs_closed)
    VALUES ('kept', 1, 'kept--1-012345', '2026-12-01 10:00:01', true, true, 60, false, 'ray-worker-0', '{"pid": "12"}',
    true, false)""",
)
"""Rows of the first revision."""

OF_0_3 = ("CREATE TABLE alembic_version (version_num VARCHAR(32))", "INSERT INTO alembic_version VALUES ('0004')")
OF_LATER = (OF_0_3[0], "INSERT INTO alembic_version VALUES ('r9999')")
JOBS = ("CREATE TABLE jobs (id VARCHAR)", "INSERT INTO jobs VALUES ('precious')")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    """A store whose database does not exist."""
    store = JobStore(f"sqlite:///{tmp_path / 'gateway.db'}")
    yield store
    store.engine.dispose()


def fill(store: JobStore, *statements: str) -> None:
    with store.engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement.replace(":", r"\:")))


def first_tables(store: JobStore) -> None:
    with sqlite3.connect(str(store.engine.url.database)) as database:
        database.executescript(FIRST.read_text())


def dump(store: JobStore) -> list[str]:
    with sqlite3.connect(str(store.engine.url.database)) as database:
        return list(database.iterdump())


def test_rows_of_first_revision_are_read_after_the_upgrade(store: JobStore) -> None:
    first_tables(store)
    fill(store, *ROWS)
    upgrade(store.engine)
    job = asyncio.run(store.get("kept"))
    assert (job.sequence, job.user, job.person, job.team, job.state) == (7, "ada", "ada", "vision", "RUNNING")
    assert (job.max_restarts_on_loss, job.max_restarts_on_failure, job.limit_s) == (5, 2, 3600.5)
    assert job.runtime_env == {"env_vars": {"A": "größer"}}
    assert job.workers == {"count": 2, "cpus": 1, "gpus": 0}
    (attempt,) = job.attempts
    assert (attempt.ray_submission_id, attempt.node) == ("kept--1-012345", "ray-worker-0")
    assert (attempt.driver, attempt.grace_s, job.open_attempt) == ({"pid": "12"}, 60, attempt)


def test_upgraded_tables_are_those_of_the_classes(store: JobStore) -> None:
    first_tables(store)
    upgrade(store.engine)
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        missing = produce_migrations(context, Base.metadata).upgrade_ops
        assert missing
        assert missing.is_empty(), f"operations that a migration lacks:\n{render_python_code(missing)}"


def test_second_upgrade_changes_nothing(store: JobStore) -> None:
    upgrade(store.engine)
    fill(store, *ROWS)
    before = dump(store)
    upgrade(store.engine)
    assert dump(store) == before


@pytest.mark.parametrize(
    ("statements", "revision"),
    [((*OF_0_3, *JOBS), "0004"), ((*OF_LATER, *JOBS), "r9999"), (JOBS, "None")],
    ids=["version 0.3", "later version", "tables without a revision"],
)
def test_database_of_unknown_version_is_refused_and_kept(
    store: JobStore, statements: tuple[str, ...], revision: str
) -> None:
    fill(store, *statements)
    before = dump(store)
    with pytest.raises(StorageError, match=f"has revision {revision}, .* `git reflog` names, .* MLPLATFORM_HOME"):
        upgrade(store.engine)
    assert dump(store) == before


def test_stack_of_unknown_version_is_refused_with_way_out(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, *OF_0_3)
    monkeypatch.setattr(store.engine.dialect, "name", "postgresql")
    with pytest.raises(StorageError, match=r"has revision 0004, .* another STACK_PREFIX in \.env\.$"):
        upgrade(store.engine)


@pytest.mark.parametrize("program", ["mlplatform_gateway", "mlplatform_gateway.database.migrations"])
def test_programs_end_with_one_sentence_about_unknown_version(store: JobStore, program: str) -> None:
    fill(store, *OF_0_3, *JOBS)
    done = run(program, str(store.engine.url))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "The gateway's database has revision 0004, which this version does not know"
    )


def test_program_upgrades_the_database_alone(store: JobStore) -> None:
    url = str(store.engine.url)
    assert run("mlplatform_gateway.database.migrations", url).returncode == 0
    fill(store, *ROWS)
    assert asyncio.run(store.get("kept")).user == "ada"
    failed = run("mlplatform_gateway.database.migrations", f"{url}/none")
    assert failed.returncode == 1
    assert failed.stderr.startswith("The gateway's database does not answer")


def run(program: str, url: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "MLPLATFORM_GATEWAY_DATABASE": url}
    return subprocess.run([sys.executable, "-m", program], env=env, capture_output=True, text=True, check=False)
