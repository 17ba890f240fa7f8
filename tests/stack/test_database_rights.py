"""Rights of each role of Postgres: every action is tried with every role, and compared with a table.

A row names an action and the roles that may perform it; all others must be refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg2
import pytest
from figures import count
from host import Stack, run
from psycopg2 import errors

from mlplatform_stack.credential_files import read_postgres_service

ROLES = ("mlflow", "gateway", "exporter", "backup", "stranger")
OWNERS = ("mlflow", "gateway")

# Each role connects to its own database, in which the statements below are executed.
HOME = {"mlflow": "mlflow", "gateway": "gateway", "exporter": "postgres", "backup": "gateway", "stranger": "postgres"}

CONNECT: dict[str, tuple[str, ...]] = {
    "mlflow": ("mlflow", "backup"),
    "mlflow_auth": ("mlflow", "backup"),
    "gateway": ("gateway", "backup"),
    "postgres": ("exporter",),
    "template1": (),
}
"""Database: the roles that may connect to it."""

STATEMENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "create table": ("CREATE TABLE rights_probe (x int)", OWNERS),
    "create database": ("CREATE DATABASE rights_probe", ()),
    "create role": ("CREATE ROLE rights_probe", ()),
    "become superuser": ("ALTER ROLE {role} SUPERUSER", ()),
    "become another role": ("SET ROLE postgres", ()),
    "change another's password": ("ALTER ROLE {other} PASSWORD 'x'", ()),
    "join another role": ("GRANT {other} TO {role}", ()),
    "transfer a database": ("ALTER DATABASE postgres OWNER TO {role}", ()),
    "drop another's database": ("DROP DATABASE {other}", ()),
    # Verifiers, with which nobody can log in: Postgres lets a role that reads all data read the catalogs too.
    "read passwords": ("SELECT rolpassword FROM pg_authid", ("backup",)),
    "read a file": ("SELECT pg_read_file('/etc/passwd')", ()),
    "write a file": ("COPY (SELECT 1) TO '/tmp/rights_probe'", ()),
    "run a program": ("COPY (SELECT 1) TO PROGRAM 'true'", ()),
    "change the server": ("ALTER SYSTEM SET log_connections = off", ()),
    "stop logging": ("SET log_statement = 'none'", ()),
    "load a library": ("LOAD '/tmp/rights_probe.so'", ()),
    "write a large object": ("SELECT lo_import('/etc/passwd')", ()),
    "read settings": ("SHOW max_connections", (*OWNERS, "exporter", "backup")),
    "read a setting of the superuser": ("SHOW data_directory", ("exporter",)),
}
"""Action: statement, and the roles that may."""


@pytest.fixture(scope="module")
def postgres(running: Stack) -> dict[str, Any]:
    """Address of the server, and each role's password."""
    files = {role: running.root / "secrets" / f"postgres_{role}" for role in (*OWNERS, "backup")}
    passwords = {role: read_postgres_service(file)[1] for role, file in files.items()}
    passwords |= {"exporter": running.secret("postgres_exporter_password"), "stranger": uuid.uuid4().hex}
    return {"host": running.addresses("postgres")[0], "passwords": passwords}


@contextmanager
def connected(postgres: dict[str, Any], role: str, database: str) -> Iterator[Any]:
    """Connect with a role; nothing that is done is committed."""
    given = {"host": postgres["host"], "port": postgres.get("port", 5432), "connect_timeout": 20}
    with closing(psycopg2.connect(**given, user=role, password=postgres["passwords"][role], dbname=database)) as found:
        yield found


@pytest.mark.parametrize("database", CONNECT)
def test_postgres_roles_connect_as_table_says(postgres: dict[str, Any], database: str) -> None:
    connecting = set()
    for role in ROLES:
        count("actions tried with accounts")
        try:
            with connected(postgres, role, database):
                connecting.add(role)
        except psycopg2.OperationalError as error:
            if not any(text in str(error) for text in ("permission denied", "password authentication failed")):
                raise
    assert connecting == set(CONNECT[database])


@pytest.mark.parametrize("action", STATEMENTS)
def test_postgres_roles_execute_what_table_says(postgres: dict[str, Any], action: str) -> None:
    statement, allowed = STATEMENTS[action]
    performed = set()
    for role in ROLES[:-1]:
        count("actions tried with accounts")
        with connected(postgres, role, HOME[role]) as connection:
            connection.autocommit = "DATABASE" in statement or "SYSTEM" in statement
            other = next(name for name in OWNERS if name != role)
            try:
                connection.cursor().execute(statement.format(role=role, other=other))
                performed.add(role)
            except errors.InsufficientPrivilege:
                pass
    assert performed == set(allowed)


@pytest.mark.parametrize("change", ["DELETE FROM jobs", "TRUNCATE jobs CASCADE", "UPDATE jobs SET id = id"])
def test_role_of_backups_reads_but_changes_nothing(postgres: dict[str, Any], change: str) -> None:
    with connected(postgres, "backup", "gateway") as connection, closing(connection.cursor()) as cursor:
        cursor.execute("SELECT count(*) FROM jobs")
        with pytest.raises(errors.InsufficientPrivilege):
            cursor.execute(change)


def test_postgres_logs_connections_and_changed_schemas_without_passwords(
    running: Stack, postgres: dict[str, Any]
) -> None:
    table = f"rights_{uuid.uuid4().hex}"
    with connected(postgres, "gateway", "gateway") as connection:
        connection.cursor().execute(f"CREATE TABLE {table} (x int)")
    logs = run("docker", "logs", "--since=60s", running.container("postgres"))
    lines = (logs.stdout + logs.stderr).splitlines()
    assert any("gateway@gateway" in line and f"CREATE TABLE {table}" in line for line in lines), lines[-20:]
    assert any("connection authorized: user=gateway" in line for line in lines)
    everything = run("docker", "logs", running.container("postgres"))
    assert not any(password in everything.stdout + everything.stderr for password in postgres["passwords"].values())
