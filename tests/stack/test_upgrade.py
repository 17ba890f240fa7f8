"""The gateway's tables in the stack's Postgres, as the code of the platform's image creates them."""

from collections.abc import Iterator

import pytest
from host import Stack, run

DATABASE = "gateway_of_a_test"
PSQL = ("psql", "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--username=postgres")


def drop(stack: Stack) -> None:
    stack.execute("postgres", *PSQL, f"--command=DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")


def migrate(stack: Stack) -> None:
    """Migrate the database with the gateway's program."""
    url = f"MLPLATFORM_GATEWAY_DATABASE=postgresql+psycopg2:///{DATABASE}?service=gateway"
    program = ("python", "-m", "mlplatform_gateway.database.migrations")
    run("docker", "exec", "--env", url, stack.container("gateway"), *program)


@pytest.fixture
def database(stack: Stack) -> Iterator[str]:
    """A database with the gateway's tables, beside its own."""
    drop(stack)
    stack.execute("postgres", *PSQL, f"--command=CREATE DATABASE {DATABASE} OWNER gateway")
    migrate(stack)
    yield DATABASE
    drop(stack)


def dump(stack: Stack, database: str, *options: str) -> list[str]:
    """The statements that create a database, without `\\restrict`, whose keys are random."""
    text = stack.execute("postgres", "pg_dump", *options, "--username=postgres", database).stdout
    return [line for line in text.splitlines() if not line.startswith(("\\restrict", "\\unrestrict"))]


def test_second_migration_changes_nothing(stack: Stack, database: str) -> None:
    before = dump(stack, database)
    migrate(stack)
    assert dump(stack, database) == before
    assert dump(stack, database, "--schema-only") == dump(stack, "gateway", "--schema-only")


@pytest.mark.parametrize("statement", ["UPDATE audit SET principal = 'x'", "DELETE FROM audit", "TRUNCATE audit"])
def test_audit_log_of_postgres_is_append_only(stack: Stack, database: str, statement: str) -> None:
    row = (
        "INSERT INTO audit (time, principal, kind, address, verb, object) VALUES (now(), 'a', 'token', '', 'stop', 'b')"
    )
    stack.execute("postgres", *PSQL, f"--dbname={database}", f"--command={row}")
    refused = stack.execute("postgres", *PSQL, f"--dbname={database}", f"--command={statement}", check=False)
    assert refused.returncode != 0
    assert "append-only" in refused.stderr
