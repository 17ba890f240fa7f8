"""A database in SQLite, a store of jobs in one, and a gateway with a job."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, event
from started_gateway import StartedGateway
from stored import database_in

from mlplatform_gateway.database.engine import connect
from mlplatform_gateway.jobs.store import JobStore


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    store = JobStore(database_in(tmp_path))
    # Do not wait for the disk: these databases do not outlive the process.
    event.listen(store.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    return store


@pytest.fixture
def started(tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch) -> StartedGateway:
    """A gateway with the job `mine`, whose first attempt runs."""
    monkeypatch.setenv("MLPLATFORM_STORAGE", str(tmp_path / "storage"))
    gateway = StartedGateway(tmp_path, f"http://127.0.0.1:{closed_port}")
    gateway.add()
    return gateway


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = connect(database_in(tmp_path))
    yield engine
    engine.dispose()
