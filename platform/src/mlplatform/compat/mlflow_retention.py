"""Final removal of what was deleted in MLflow, by its server, as `mlflow gc` of 3.17.2 does with private methods.

`mlflow gc` looks at no registered models and needs the databases' and the buckets' accounts. Here the server, which has
them, removes one run or logged model per request, in steps that can be repeated.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from mlplatform.compat.mlflow_locations import SCHEME, path_of

_PER_PAGE = 20
"""Entries per answer: for each one, the files are listed and counted."""

_OPEN = ("RUNNING", "SCHEDULED")

_DAY_MS = 86_400_000


@dataclass(frozen=True)
class _Deleted:
    """A run or logged model that is in the trash."""

    id: str
    location: str
    is_model: bool
    is_open: bool = False


def expired(days: float, after: str = "") -> list[dict[str, Any]]:
    """Return what was deleted some days ago, by id from the one after `after` on, twenty at most.

    Each entry has its id, the number and the bytes of its files, and whether `remove` would remove it.
    """
    page = [found for found in _deleted(days) if found.id > after][:_PER_PAGE]
    return [_entry(found) for found in page]


def remove(identity: str, days: float) -> bool:
    """Remove a run or logged model with its files; False if it is not expired, or a registered version needs it."""
    found = next((found for found in _deleted(days) if found.id == identity), None)
    path = _removable_path(found) if found else None
    if found is None or path is None:
        return False
    # Files first: without the row, nobody would find them.
    _repository().delete_artifacts(path)
    store = _tracking_store()
    if found.is_model:
        store._hard_delete_logged_model(identity)
    else:
        store._hard_delete_run(identity)
    return True


def _entry(found: _Deleted) -> dict[str, Any]:
    path = _removable_path(found)
    sizes = _sizes_of_files(path) if path else []
    return {"id": found.id, "removable": path is not None, "files": len(sizes), "bytes": sum(sizes)}


def _removable_path(found: _Deleted) -> str | None:
    """Return the path of its files; None if they must be kept."""
    path = path_of(found.location)
    return path if path and not found.is_open and not _is_registered(found, path) else None


def _sizes_of_files(path: str) -> list[int]:
    """Return the size of each file below a path, in bytes."""
    entries = list(_repository().list_artifacts(path))
    files = [entry.file_size or 0 for entry in entries if not entry.is_dir]
    return [*files, *(size for entry in entries if entry.is_dir for size in _sizes_of_files(entry.path))]


def _deleted(days: float) -> list[_Deleted]:
    """Return the runs and logged models that were deleted some days ago, by id."""
    from mlflow.entities import LifecycleStage
    from mlflow.store.tracking.dbmodels.models import SqlLoggedModel, SqlRun

    before = time.time_ns() // 1_000_000 - days * _DAY_MS
    with _tracking_store().ManagedSessionMaker(read_only=True) as session:
        runs = session.query(SqlRun.run_uuid, SqlRun.artifact_uri, SqlRun.status).filter(
            SqlRun.lifecycle_stage == LifecycleStage.DELETED, SqlRun.deleted_time <= before
        )
        models = session.query(SqlLoggedModel.model_id, SqlLoggedModel.artifact_location).filter(
            SqlLoggedModel.lifecycle_stage == LifecycleStage.DELETED,
            SqlLoggedModel.last_updated_timestamp_ms <= before,
        )
        found = [_Deleted(run, location or "", False, status in _OPEN) for run, location, status in runs]
        found += [_Deleted(model, location, True) for model, location in models]
    return sorted(found, key=lambda one: one.id)


def _is_registered(found: _Deleted, path: str) -> bool:
    """Return whether a registered version names the run or model as its origin, or has files at, above or below it."""
    from mlflow.entities.model_registry.model_version_stages import STAGE_DELETED_INTERNAL
    from mlflow.store.model_registry.dbmodels.models import SqlModelVersion as Version
    from sqlalchemy import or_

    parts = path.split("/")
    places = [f"{SCHEME}{'/'.join(parts[: count + 1])}{end}" for count in range(len(parts)) for end in ("", "/")]
    columns: tuple[Any, ...] = (Version.storage_location, Version.source)
    tests = [Version.run_id == found.id, Version.source == f"models:/{found.id}"]
    for column in columns:
        tests += [column.in_(places), column.startswith(f"{SCHEME}{path}/", autoescape=True)]
    with _registry_store().ManagedSessionMaker(read_only=True) as session:
        query = session.query(Version.name).filter(Version.current_stage != STAGE_DELETED_INTERNAL, or_(*tests))
        return query.first() is not None


def _tracking_store() -> Any:
    from mlflow.server import handlers

    return handlers._get_tracking_store()


def _registry_store() -> Any:
    from mlflow.server import handlers

    return handlers._get_model_registry_store()


def _repository() -> Any:
    from mlflow.server import handlers

    return handlers._get_artifact_repo_mlflow_artifacts()  # type: ignore[no-untyped-call]
