"""Connection to the gateway's database, methods that run as one transaction each, and the base of its tables."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio.to_thread
from sqlalchemy import JSON, DateTime, Dialect, Engine, TypeDecorator, create_engine
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import DeclarativeBase, Session

from mlplatform.errors import UnreachableError

_CONNECT_SECONDS = 3
_POOL = 8

_P = ParamSpec("_P")

_T = TypeVar("_T")


class Store:
    """Base of the classes with methods that are a `transaction` each."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine


_Store = TypeVar("_Store", bound=Store)


def connect(url: str) -> Engine:
    """Return an engine for a SQLAlchemy URL; it connects when it is first used."""
    options: dict[str, Any] = {}
    if url.startswith("postgresql"):
        # A restarted Postgres leaves dead connections behind: each is tested before its use.
        options = {
            "pool_pre_ping": True,
            "pool_size": _POOL,
            "pool_timeout": 10,
            "connect_args": {
                "connect_timeout": _CONNECT_SECONDS,
                "options": "-c statement_timeout=30000",
                # A server that disappears without closing its connections is detected after 10 s.
                "keepalives_idle": 5,
                "keepalives_interval": 2,
                "keepalives_count": 3,
                "tcp_user_timeout": 10000,
            },
        }
    elif url.startswith("sqlite:///"):
        # One connection: SQLite takes no lock for a read, so two transactions could act on the same state of a job.
        options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 30, "connect_args": {"timeout": 30}}
    return create_engine(url, hide_parameters=True, **options)  # variables of jobs may be secrets


def transaction(
    method: Callable[Concatenate[_Store, Session, _P], _T],
) -> Callable[Concatenate[_Store, _P], Coroutine[Any, Any, _T]]:
    """Run a method in a transaction of its own, in a thread, so that the event loop never waits for the database.

    The coroutine raises UnreachableError while the database is unavailable; then nothing has changed.
    """

    async def run(self: _Store, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        def call() -> _T:
            with _session(self.engine) as session:
                return method(self, session, *args, **kwargs)

        return await anyio.to_thread.run_sync(call)

    update_wrapper(run, method)
    return run


@contextmanager
def _session(engine: Engine) -> Iterator[Session]:
    try:
        with Session(engine, expire_on_commit=False) as session, session.begin():
            yield session
    except (OperationalError, InterfaceError, PoolTimeoutError) as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise UnreachableError(f"The gateway's database does not answer ({reason}); try again.") from error


class _Time(TypeDecorator[datetime]):
    """A time with its zone, which SQLite does not store."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


class Base(DeclarativeBase):
    """Base class of the gateway's tables."""

    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's form
        datetime: _Time,
        dict[str, Any]: JSON(none_as_null=True),
        list[str]: JSON(),
    }
