"""Databases of versions 0.1.0 and 0.3.0 in the stack's Postgres, upgraded by the code of the platform's image."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from host import Stack, run

FIXTURES = Path(__file__).parents[1] / "fixtures"
DATABASE = "gateway_of_earlier_version"
MLFLOW, ACCOUNTS = "mlflow_0_1_0", "mlflow_auth_0_1_0"
PSQL = ("psql", "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--username=postgres")


def fill(stack: Stack, database: str, owner: str, dump: str) -> None:
    """Create a separate database with a dump."""
    drop(stack, database)
    stack.execute("postgres", *PSQL, f"--command=CREATE DATABASE {database} OWNER {owner}")
    psql = ("docker", "exec", "-i", stack.container("postgres"), *PSQL, f"--dbname={database}")
    run(*psql, input=f"SET ROLE {owner};\n{(FIXTURES / dump).read_text()}")


def drop(stack: Stack, database: str) -> None:
    stack.execute("postgres", *PSQL, f"--command=DROP DATABASE IF EXISTS {database} WITH (FORCE)")


@pytest.fixture
def old_database(stack: Stack, request: pytest.FixtureRequest) -> Iterator[str]:
    """The gateway's database of a version, by default of 0.1.0."""
    fill(stack, DATABASE, "gateway", f"{getattr(request, 'param', '0.1.0')}/gateway.postgres.sql")
    yield DATABASE
    drop(stack, DATABASE)


@pytest.fixture
def old_mlflow(stack: Stack) -> Iterator[None]:
    """MLflow's databases of 0.1.0."""
    fill(stack, MLFLOW, "mlflow", "0.1.0/mlflow.postgres.sql")
    fill(stack, ACCOUNTS, "mlflow", "0.1.0/mlflow_auth.postgres.sql")
    yield
    drop(stack, MLFLOW)
    drop(stack, ACCOUNTS)


def upgraded(stack: Stack, database: str) -> list[dict[str, Any]]:
    """The jobs of a database after the gateway's code has upgraded it."""
    url = f"postgresql+psycopg2:///{database}?service=gateway"
    script = (FIXTURES / "upgraded.py").read_text()
    return json.loads(run("docker", "exec", "-i", stack.container("gateway"), "python", "-", url, input=script).stdout)


def schema(stack: Stack, database: str) -> list[str]:
    """The DDL statements of a database, without `\\restrict`, whose keys are random."""
    dump = stack.execute("postgres", "pg_dump", "--schema-only", "--username=postgres", database).stdout
    return [line for line in dump.splitlines() if not line.startswith(("\\restrict", "\\unrestrict"))]


@pytest.mark.parametrize(
    ("old_database", "version"), [("0.1.0", "0.1.0"), ("0.3.0", "0.3.0")], indirect=["old_database"]
)
def test_upgrade_preserves_every_job_of_earlier_version(stack: Stack, old_database: str, version: str) -> None:
    expected = json.loads((FIXTURES / version / "jobs.json").read_text())
    assert upgraded(stack, old_database) == expected
    assert upgraded(stack, old_database) == expected, "a second upgrade changed something"
    assert schema(stack, old_database) == schema(stack, "gateway")


def test_upgrade_preserves_runs_models_and_accounts_of_0_1_0(stack: Stack, old_mlflow: None) -> None:
    urls = [f"postgresql+psycopg2:///{database}?service=mlflow" for database in (MLFLOW, ACCOUNTS)]
    python = ("docker", "exec", "-i", stack.container("mlflow"), "python", "-", *urls)
    script = (FIXTURES / "upgraded_mlflow.py").read_text()
    found = json.loads(run(*python, input=script).stdout)
    assert found == json.loads((FIXTURES / "0.1.0" / "mlflow.json").read_text())
    assert schema(stack, ACCOUNTS) == schema(stack, "mlflow_auth")


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


@pytest.mark.parametrize(
    "statement",
    ["UPDATE mlplatform_audit SET who = 'x'", "DELETE FROM mlplatform_audit", "TRUNCATE mlplatform_audit"],
)
def test_role_of_mlflow_cannot_change_its_audit_log(stack: Stack, statement: str) -> None:
    commands = ("--command=SET ROLE mlflow", f"--command={statement}")
    refused = stack.execute("postgres", *PSQL, "--dbname=mlflow", *commands, check=False)
    assert refused.returncode != 0
    assert "append-only" in refused.stderr
