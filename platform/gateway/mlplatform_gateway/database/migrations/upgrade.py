"""Upgrade of the gateway's database to the tables of this version, with Alembic.

A new database gets the tables of the classes; one of an earlier version is changed by the files in `versions/`.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import OperationalError

from mlplatform.errors import StorageError, UnreachableError
from mlplatform_gateway.audit import schema as _audit  # noqa: F401 - has tables, as the others
from mlplatform_gateway.database.engine import Base
from mlplatform_gateway.jobs import schema as _jobs  # noqa: F401
from mlplatform_gateway.mlflow import digests as _digests  # noqa: F401
from mlplatform_gateway.notify import store as _messages  # noqa: F401
from mlplatform_gateway.people import schema as _people  # noqa: F401
from mlplatform_gateway.usage import schema as _usage  # noqa: F401

_SCRIPTS = Path(__file__).parent

_BESIDE = {
    "postgresql": "start a new stack with another STACK_PREFIX in .env",
    "sqlite": "start a new platform in another folder with MLPLATFORM_HOME",
}
"""Dialect -> how to start without the database."""


def upgrade(engine: Engine) -> None:
    """Create the tables of an empty database, or apply the migrations that another lacks, in one transaction.

    Raises:
        StorageError: the database was written by a version from before 0.4 or by a later one; nothing was changed.
        UnreachableError: the database is unavailable.
    """
    try:
        with engine.begin() as connection:
            config = configured(connection)
            if inspect(connection).get_table_names():
                _check(connection, ScriptDirectory.from_config(config))
                command.upgrade(config, "head")
            else:
                Base.metadata.create_all(connection)
                command.stamp(config, "head")
    except OperationalError as error:
        reason = str(error.orig).strip().splitlines()[0]
        raise UnreachableError(f"The gateway's database does not answer ({reason}); start it.") from error


def configured(connection: Connection) -> Config:
    """Return Alembic's configuration for commands over a connection."""
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    config.attributes["connection"] = connection
    return config


def _check(connection: Connection, scripts: ScriptDirectory) -> None:
    """Raise StorageError unless the database has a revision of `versions/`."""
    found = MigrationContext.configure(connection).get_current_revision()
    if found not in {script.revision for script in scripts.walk_revisions()}:
        raise StorageError(
            f"The gateway's database has revision {found}, which this version does not know (upgrades begin with 0.4), "
            "so nothing was changed: run the version that wrote it, which `git reflog` names, or "
            f"{_BESIDE[connection.dialect.name]}."
        )
