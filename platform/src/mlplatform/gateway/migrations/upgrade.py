"""Upgrade of the gateway's database to the tables of this version, with Alembic."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

from mlplatform.errors import UnreachableError

_SCRIPTS = Path(__file__).parent


async def upgrade(engine: Engine) -> None:
    """Apply the missing migrations, in one transaction.

    Raises:
        UnreachableError: the database is unavailable.
    """
    await anyio.to_thread.run_sync(_upgrade, engine)


def configured(connection: Connection) -> Config:
    """Return Alembic's configuration for commands over a connection."""
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    config.attributes["connection"] = connection
    return config


def _upgrade(engine: Engine) -> None:
    try:
        with engine.begin() as connection:
            command.upgrade(configured(connection), "head")
    except OperationalError as error:
        reason = str(error.orig).strip().splitlines()[0]
        raise UnreachableError(f"The gateway's database does not answer ({reason}); start it.") from error
