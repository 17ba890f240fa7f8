"""Databases of the stack: their dumps, the revisions of their tables, and their restore."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from mlplatform.errors import StorageError
from mlplatform.settings.environment import environment
from mlplatform_stack import compat
from mlplatform_stack.bootstrap import databases as bootstrap
from mlplatform_stack.bootstrap.secret_files import SECRETS

DATABASES = {"gateway": "alembic_version", "mlflow": "alembic_version", "mlflow_auth": "alembic_version_auth"}
"""Database -> table with the revision of its tables."""


def revisions() -> dict[str, str]:
    """Return the revision of each database that has tables, read with the account `backup`."""
    found = {}
    for database, table in DATABASES.items():
        with _connected("backup", database) as cursor:
            if bootstrap.has_table(cursor, table):
                cursor.execute(f"SELECT version_num FROM {table}")  # noqa: S608 a constant
                found[database] = str(cursor.fetchone()[0])
    return found


def _migrations_of_gateway() -> Path:
    """The folder in the image, which has the gateway's distribution as well; nothing of it is imported."""
    found = find_spec("mlplatform_gateway")
    assert found  # noqa: S101 - the image has it
    assert found.origin  # noqa: S101
    return Path(found.origin).parent / "database" / "migrations"


def known_revisions() -> dict[str, set[str]]:
    """Return the revisions of each database that this version can upgrade to its own."""
    from alembic.script import ScriptDirectory

    folders = {"gateway": _migrations_of_gateway(), **compat.migrations()}
    return {
        name: {script.revision for script in ScriptDirectory(str(folder)).walk_revisions()}
        for name, folder in folders.items()
    }


@contextmanager
def dumped(database: str) -> Iterator[IO[bytes]]:
    """Dump a database to a temporary file; uncompressed, so that two dumps share what has not changed."""
    with tempfile.TemporaryFile() as file:
        command = ["pg_dump", "--format=custom", "--compress=0", f"--dbname=service=backup dbname={database}"]
        _run(command, "backup", database, stdout=file)
        yield file


def restore(database: str, dump: IO[bytes]) -> None:
    """Replace the contents of a database by those of a dump; an interrupted one can be repeated.

    Raises:
        StorageError: Postgres rejects the dump.
    """
    from psycopg2 import sql

    with tempfile.TemporaryFile() as file:
        shutil.copyfileobj(dump, file)
        file.seek(0)
        with closing(bootstrap.connect_as_superuser()) as connection:
            connection.autocommit = True  # DROP DATABASE cannot run in a transaction
            drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database))
            connection.cursor().execute(drop)
        bootstrap.make_databases()
        owner = bootstrap.OWNERS[database]
        target = f"--dbname=service={owner} dbname={database}"
        command = ["pg_restore", "--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction", target]
        _run(command, owner, database, stdin=file)


def has_rows() -> bool:
    """Return whether there are runs or jobs."""
    for database, table in (("gateway", "jobs"), ("mlflow", "runs")):
        with _connected(bootstrap.OWNERS[database], database) as cursor:
            if bootstrap.has_table(cursor, table):
                cursor.execute(f"SELECT 1 FROM {table} LIMIT 1")  # noqa: S608 a constant
                if cursor.fetchone():
                    return True
    return False


@contextmanager
def _connected(service: str, database: str) -> Iterator[Any]:
    import psycopg2

    user, password = bootstrap.postgres_account(service)
    try:
        connection = psycopg2.connect(host="postgres", dbname=database, user=user, password=password)
    except psycopg2.OperationalError as error:
        reason = str(error).strip().splitlines()[-1]
        raise StorageError(f"The database {database} rejects the account {user} ({reason}); run `make up`.") from error
    with closing(connection), connection.cursor() as cursor:
        yield cursor


def _run(command: list[str], service: str, database: str, **options: Any) -> None:
    variables = {**environment(), "PGSERVICEFILE": str(SECRETS / f"postgres_{service}")}
    result = subprocess.run(command, env=variables, stderr=subprocess.PIPE, text=True, check=False, **options)
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise StorageError(
            f"The database {database} could not be read or written by {command[0]} ({reason}); see the log of postgres."
        )
