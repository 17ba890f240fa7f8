"""The gateway's database of version 0.1.0 in the stack's Postgres, upgraded by the code of the gateway's image."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from host import Stack, run

FIXTURES = Path(__file__).parents[1] / "fixtures"
DATABASE = "gateway_0_1_0"
PSQL = ("psql", "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--username=postgres")


@pytest.fixture
def old_database(stack: Stack) -> Iterator[str]:
    """A separate database with the dump of 0.1.0."""
    remove = f"--command=DROP DATABASE IF EXISTS {DATABASE}"
    stack.execute("postgres", *PSQL, remove)
    stack.execute("postgres", *PSQL, f"--command=CREATE DATABASE {DATABASE} OWNER gateway")
    dump = (FIXTURES / "0.1.0" / "gateway.postgres.sql").read_text()
    psql = ("docker", "exec", "-i", stack.container("postgres"), *PSQL, f"--dbname={DATABASE}")
    run(*psql, input=f"SET ROLE gateway;\n{dump}")
    yield DATABASE
    stack.execute("postgres", *PSQL, remove)


def upgraded(stack: Stack, database: str) -> list[dict[str, Any]]:
    """The jobs of a database after the gateway's code has upgraded it."""
    url = f"postgresql+psycopg2:///{database}?service=gateway"
    script = (FIXTURES / "upgraded.py").read_text()
    return json.loads(run("docker", "exec", "-i", stack.container("gateway"), "python", "-", url, input=script).stdout)


def schema(stack: Stack, database: str) -> list[str]:
    """The DDL statements of a database, without `\\restrict`, whose keys are random."""
    dump = stack.execute("postgres", "pg_dump", "--schema-only", "--username=postgres", database).stdout
    return [line for line in dump.splitlines() if not line.startswith(("\\restrict", "\\unrestrict"))]


def test_upgrade_preserves_every_job_of_0_1_0(stack: Stack, old_database: str) -> None:
    expected = json.loads((FIXTURES / "0.1.0" / "jobs.json").read_text())
    assert upgraded(stack, old_database) == expected
    assert upgraded(stack, old_database) == expected, "a second upgrade changed something"
    assert schema(stack, old_database) == schema(stack, "gateway")


@pytest.mark.parametrize("statement", ["UPDATE audit SET principal = 'x'", "DELETE FROM audit", "TRUNCATE audit"])
def test_audit_log_of_postgres_is_append_only(stack: Stack, old_database: str, statement: str) -> None:
    upgraded(stack, old_database)
    row = (
        "INSERT INTO audit (time, principal, kind, address, verb, object) VALUES (now(), 'a', 'token', '', 'stop', 'b')"
    )
    stack.execute("postgres", *PSQL, f"--dbname={old_database}", f"--command={row}")
    refused = stack.execute("postgres", *PSQL, f"--dbname={old_database}", f"--command={statement}", check=False)
    assert refused.returncode != 0
    assert "append-only" in refused.stderr
