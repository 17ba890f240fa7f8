"""A store of jobs in SQLite."""

import shutil
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event
from stored import do

from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.migrations.upgrade import upgrade


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with all tables and no rows."""
    path = tmp_path_factory.mktemp("migrated") / "gateway.db"
    engine = create_engine(f"sqlite:///{path}")
    do(upgrade(engine))
    engine.dispose()
    return path


@pytest.fixture
def store(migrated: Path, tmp_path: Path) -> JobStore:
    store = JobStore(f"sqlite:///{shutil.copy(migrated, tmp_path)}")
    # Do not wait for the disk: these databases do not outlive the process.
    event.listen(store.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    return store
