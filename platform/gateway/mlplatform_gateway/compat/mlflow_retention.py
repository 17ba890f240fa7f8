"""Permanent removal, in MLflow's server, of what was deleted there, with the private methods of 3.17.2's `mlflow gc`.

`mlflow gc` looks at no registered models and needs the databases' and the buckets' accounts. Here the server, which has
them, removes one run or logged model per request, in steps that can be repeated.
"""

from __future__ import annotations

from typing import Any

from mlplatform_gateway.compat.mlflow_locations import SCHEME, path_of

_PER_PAGE = 20
"""Entries per answer: for each one, the files are listed and counted."""

_MODEL = "m-"
"""Prefix of the ids of logged models; those of runs are hexadecimal."""

_OPEN = ("RUNNING", "SCHEDULED")

_DAY_MS = 86_400_000


def add_removals(app: Any) -> None:
    """Let the gateway find and remove what was deleted some days ago, by a route of our own beside MLflow's.

    `mlflow.server.handlers.catch_mlflow_exception` turns exceptions into answers. MLflow's authentication admits only
    administrators to a route that it does not know.

    Args:
        app: MLflow's Flask application.
    """
    view = _handlers().catch_mlflow_exception(_expired)
    app.add_url_rule("/api/2.0/mlflow/mlplatform/expired", "mlplatform_expired", view, methods=["GET", "POST"])


def _expired() -> Any:
    from flask import request

    if request.method == "GET":
        days = _days(request.args.get("days", type=float))
        return {"expired": expired(days, request.args.get("after", ""))}
    values = request.get_json()
    return {"removed": remove(str(values.get("id", "")), _days(values.get("days")))}


def _days(given: Any) -> float:
    """Return a number of days that a request names; a missing one must not remove everything."""
    from mlflow.exceptions import MlflowException

    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
        raise MlflowException.invalid_parameter_value(f"Invalid days {given!r}: pass a number, 0 or more.")
    return float(given)


def expired(days: float, after: str = "") -> list[dict[str, Any]]:
    """Return up to twenty runs and logged models that were deleted at least `days` ago, by id, after `after`.

    Each entry has its id, the number and the bytes of its files, and whether `remove` would remove
    it.
    """
    page = [identity for identity in _deleted(days) if identity > after][:_PER_PAGE]
    return [_entry(identity) for identity in page]


def remove(identity: str, days: float) -> bool:
    """Remove a run or logged model with its files; False if it is not expired, or a registered version needs it."""
    path = _removable_path(identity) if identity in _deleted(days) else None
    if path is None:
        return False
    # Files first: without the row, nobody would find them.
    _handlers()._get_artifact_repo_mlflow_artifacts().delete_artifacts(path)
    store = _handlers()._get_tracking_store()
    delete = store._hard_delete_logged_model if identity.startswith(_MODEL) else store._hard_delete_run
    delete(identity)
    return True


def _deleted(days: float) -> list[str]:
    store, age = _handlers()._get_tracking_store(), int(days * _DAY_MS)
    return sorted([*store._get_deleted_runs(age), *store._get_deleted_logged_models(age)])


def _entry(identity: str) -> dict[str, Any]:
    path = _removable_path(identity)
    sizes = _sizes_of_files(path) if path else []
    return {"id": identity, "removable": path is not None, "files": len(sizes), "bytes": sum(sizes)}


def _removable_path(identity: str) -> str | None:
    """Return the path of the files of a run or logged model; None if they must be kept."""
    store, is_open = _handlers()._get_tracking_store(), False
    if identity.startswith(_MODEL):
        location = store.get_logged_model(identity, allow_deleted=True).artifact_location
    else:
        run = store.get_run(identity).info
        location, is_open = run.artifact_uri, run.status in _OPEN
    path = path_of(location or "")
    return path if path and not is_open and not _is_registered(identity, path) else None


def _sizes_of_files(path: str) -> list[int]:
    """Return the size of each file below a path, in bytes."""
    entries = list(_handlers()._get_artifact_repo_mlflow_artifacts().list_artifacts(path))
    files = [entry.file_size or 0 for entry in entries if not entry.is_dir]
    return [*files, *(size for entry in entries if entry.is_dir for size in _sizes_of_files(entry.path))]


def _is_registered(identity: str, path: str) -> bool:
    """Return whether a registered version names the run or model as its origin, or has files at its path or below."""
    from mlflow.entities.model_registry.model_version_stages import STAGE_DELETED_INTERNAL
    from mlflow.store.model_registry.dbmodels.models import SqlModelVersion as Version
    from sqlalchemy import or_

    # The source of a copied version is another version; where its files are is in the other column.
    columns: tuple[Any, ...] = (Version.source, Version.storage_location)
    tests = [column.startswith(f"{SCHEME}{path}", autoescape=True) for column in columns]
    tests += [Version.run_id == identity, Version.source == f"models:/{identity}"]
    with _handlers()._get_model_registry_store().ManagedSessionMaker(read_only=True) as session:
        query = session.query(Version.name).filter(Version.current_stage != STAGE_DELETED_INTERNAL, or_(*tests))
        return query.first() is not None


def _handlers() -> Any:
    """Return the module with the server's stores, which are made once per process."""
    from mlflow.server import handlers

    return handlers
