"""Brings the gateway's database to the tables of this version, by Alembic."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from mlplatform.errors import UnreachableError

_SCRIPTS = Path(__file__).parent


async def upgrade(engine: Engine) -> None:
    """Apply what is missing; all of it or nothing.

    Raises:
        UnreachableError: the database does not answer.
    """
    await anyio.to_thread.run_sync(_upgrade, engine)


def _upgrade(engine: Engine) -> None:
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except OperationalError as error:
        reason = str(error.orig).strip().splitlines()[0]
        raise UnreachableError(f"The gateway's database does not answer ({reason}); start it.") from error
