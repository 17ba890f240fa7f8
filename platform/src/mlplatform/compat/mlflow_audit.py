"""Record of changes of registered models, in a table of MLflow's database and in the server's log (mlflow 3.17.2).

`mlflow.server.handlers._get_model_registry_store` and the methods of its store: MLflow has no such record of its own.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

# Methods of the registry's store that change what is registered: name -> names of the arguments that identify it.
_AUDITED = {
    "create_registered_model": ("name",),
    "rename_registered_model": ("name",),
    "update_registered_model": ("name",),
    "delete_registered_model": ("name",),
    "set_registered_model_tag": ("name",),
    "delete_registered_model_tag": ("name",),
    "set_registered_model_alias": ("name",),
    "delete_registered_model_alias": ("name",),
    "create_model_version": ("name",),
    "update_model_version": ("name", "version"),
    "transition_model_version_stage": ("name", "version"),
    "delete_model_version": ("name", "version"),
    "set_model_version_tag": ("name", "version"),
    "delete_model_version_tag": ("name", "version"),
}


def create_audit_table(uri: str) -> None:
    """Create the table of changes in MLflow's database; on Postgres, rows can be neither changed nor deleted."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(uri)
    table = _audit_table()
    table.metadata.create_all(engine)
    if engine.dialect.name == "postgresql":
        with engine.begin() as connection:
            for statement in _APPEND_ONLY:
                connection.execute(sqlalchemy.text(statement))
    engine.dispose()


def changes(limit: int) -> list[dict[str, Any]]:
    """Return the latest recorded changes, the newest first."""
    import sqlalchemy

    table = _audit_table()
    query = sqlalchemy.select(table).order_by(table.c.id.desc()).limit(limit)
    with registry_store().engine.connect() as connection:
        return [dict(row._mapping) for row in connection.execute(query)]


_APPEND_ONLY = (
    "CREATE OR REPLACE FUNCTION mlplatform_append_only() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'mlplatform_audit is append-only'; END $$",
    "CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON mlplatform_audit "
    "FOR EACH STATEMENT EXECUTE FUNCTION mlplatform_append_only()",
)


@functools.cache
def _audit_table() -> Any:
    import sqlalchemy
    from sqlalchemy import Column, Integer, String, Text

    words = [Column(name, String(256), nullable=False) for name in ("time", "who", "kind", "address", "verb")]
    texts = [Column(name, Text, nullable=False) for name in ("object", "before", "after")]
    identity = Column("id", Integer, primary_key=True)
    return sqlalchemy.Table("mlplatform_audit", sqlalchemy.MetaData(), identity, *words, *texts)


def registry_store() -> Any:
    """Return the store of the server's model registry."""
    from mlflow.server import handlers

    return handlers._get_model_registry_store()


def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method, which must exist, by what `make` returns for it."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def record_changes() -> None:
    """Record every change of registered models that this process makes."""
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

    for name, identity in _AUDITED.items():
        wrap(SqlAlchemyStore, name, functools.partial(_audited, name, identity))


def _audited(verb: str, identity: tuple[str, ...], original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def change(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(signature.bind(self, *args, **kwargs).arguments)
        about = [str(given.pop(name)) for name in identity]
        given.pop(next(iter(signature.parameters)))
        before = _state(self, about)
        result = original(self, *args, **kwargs)
        after = {name: _plain(value) for name, value in given.items()}
        _append(self, verb, "models:/" + "/".join(about), before, after)
        return result

    return change


def _state(registry: Any, about: list[str]) -> dict[str, Any]:
    """Return what is registered under a name, or name and version; empty if there is nothing."""
    from mlflow.exceptions import MlflowException

    try:
        if len(about) == 1:
            model = registry.get_registered_model(about[0])
            return {"tags": dict(model.tags), "aliases": {alias: str(to) for alias, to in model.aliases.items()}}
        version = registry.get_model_version(*about)
        return {"tags": dict(version.tags), "stage": version.current_stage, "source": version.source}
    except MlflowException:
        return {}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {value.key: value.value} if hasattr(value, "key") else value if value is None else str(value)


def _append(registry: Any, verb: str, what: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    from flask import has_request_context, request

    login = request.authorization if has_request_context() else None
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "who": str(login.username) if login else "server",
        "kind": "account",
        "address": str(request.remote_addr) if has_request_context() else "",
        "verb": verb,
        "object": what,
        "before": json.dumps(before),
        "after": json.dumps(after),
    }
    # First the log, which also tells of a change whose row cannot be written.
    print(f"audit {json.dumps(entry)}", file=sys.stderr, flush=True)
    with registry.engine.begin() as connection:
        connection.execute(_audit_table().insert().values(**entry))
