"""The audit log: rows stay as they were written, and are read in parts."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, text, update
from sqlalchemy.exc import DatabaseError
from stored import do

from mlplatform_gateway.audit.schema import AuditRow
from mlplatform_gateway.audit.store import Actor, AuditLog

ADA = Actor("ada", "token", "10.0.0.7")


@pytest.fixture
def log(engine: Engine) -> AuditLog:
    return AuditLog(engine)


def test_row_has_actor_action_and_change(log: AuditLog) -> None:
    begun = datetime.now(UTC)
    do(log.add(ADA, "stop", "job a", before={"state": "RUNNING"}, after={"state": "STOPPED"}))
    (row,) = do(log.read(10))
    assert (row.principal, row.kind, row.address, row.verb, row.object) == ("ada", "token", "10.0.0.7", "stop", "job a")
    assert (row.before, row.after) == ('{"state":"RUNNING"}', '{"state":"STOPPED"}')
    assert begun <= row.time <= datetime.now(UTC)


def test_missing_state_is_null(log: AuditLog) -> None:
    do(log.add(ADA, "log-out", "session 0a1b2c3d"))
    (row,) = do(log.read(10))
    assert (row.before, row.after) == (None, None)


def test_long_and_nul_texts_are_stored_in_part(log: AuditLog) -> None:
    do(log.add(ADA, "stop", "job " + "a" * 1000 + "\0"))
    do(log.add(ADA, "stop", "job \0"))
    long, nul = do(log.read(10))
    assert len(long.object) == 300
    assert nul.object == "job ?"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET principal = 'bob'",
        "DELETE FROM audit",
        "REPLACE INTO audit SELECT sequence, time, 'bob', kind, address, verb, object, before, after FROM audit",
    ],
)
def test_rows_can_be_neither_changed_nor_deleted(log: AuditLog, statement: str) -> None:
    do(log.add(ADA, "stop", "job a"))
    with pytest.raises(DatabaseError, match="append-only"), log.engine.begin() as connection:
        connection.execute(text(statement))
    assert [row.principal for row in do(log.read(10))] == ["ada"]


def test_statement_that_matches_no_row_changes_nothing(log: AuditLog) -> None:
    with log.engine.begin() as connection:
        assert connection.execute(update(AuditRow).values(principal="bob")).rowcount == 0
