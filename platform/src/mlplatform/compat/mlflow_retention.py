"""Final removal of what was deleted in MLflow, by its server, as `mlflow gc` of 3.17.2 does with private methods.

`mlflow gc` looks at no registered models and needs the databases' and the buckets' accounts. Here the server, which has
them, removes one run or logged model per request, in steps that can be repeated.
"""

from __future__ import annotations

from typing import Any

from mlplatform.compat.mlflow_locations import SCHEME, path_of

_PER_PAGE = 20
"""Entries per answer: for each one, the files are listed and counted."""

_MODEL = "m-"
"""Prefix of the ids of logged models; those of runs are hexadecimal."""

_OPEN = ("RUNNING", "SCHEDULED")

_DAY_MS = 86_400_000


def expired(days: float, after: str = "") -> list[dict[str, Any]]:
    """Return the runs and logged models that were deleted some days ago, by id from the one after `after` on.

    Each entry, of twenty at most, has its id, the number and the bytes of its files, and whether `remove` would remove
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
    _repository().delete_artifacts(path)
    store = _tracking_store()
    delete = store._hard_delete_logged_model if identity.startswith(_MODEL) else store._hard_delete_run
    delete(identity)
    return True


def _deleted(days: float) -> list[str]:
    store, age = _tracking_store(), days * _DAY_MS
    return sorted([*store._get_deleted_runs(age), *store._get_deleted_logged_models(age)])


def _entry(identity: str) -> dict[str, Any]:
    path = _removable_path(identity)
    sizes = _sizes_of_files(path) if path else []
    return {"id": identity, "removable": path is not None, "files": len(sizes), "bytes": sum(sizes)}


def _removable_path(identity: str) -> str | None:
    """Return the path of the files of a run or logged model; None if they must be kept."""
    store, is_open = _tracking_store(), False
    if identity.startswith(_MODEL):
        location = store.get_logged_model(identity, allow_deleted=True).artifact_location
    else:
        run = store.get_run(identity).info
        location, is_open = run.artifact_uri, run.status in _OPEN
    path = path_of(location or "")
    return path if path and not is_open and not _is_registered(identity, path) else None


def _sizes_of_files(path: str) -> list[int]:
    """Return the size of each file below a path, in bytes."""
    entries = list(_repository().list_artifacts(path))
    files = [entry.file_size or 0 for entry in entries if not entry.is_dir]
    return [*files, *(size for entry in entries if entry.is_dir for size in _sizes_of_files(entry.path))]


def _is_registered(identity: str, path: str) -> bool:
    """Return whether a registered version names the run or model as its origin, or has files at its path or below."""
    from mlflow.entities.model_registry.model_version_stages import STAGE_DELETED_INTERNAL
    from mlflow.server import handlers
    from mlflow.store.model_registry.dbmodels.models import SqlModelVersion as Version
    from sqlalchemy import or_

    # The source of a copied version is another version; where its files are is in the other column.
    columns: tuple[Any, ...] = (Version.source, Version.storage_location)
    tests = [column.startswith(f"{SCHEME}{path}", autoescape=True) for column in columns]
    tests += [Version.run_id == identity, Version.source == f"models:/{identity}"]
    with handlers._get_model_registry_store().ManagedSessionMaker(read_only=True) as session:
        query = session.query(Version.name).filter(Version.current_stage != STAGE_DELETED_INTERNAL, or_(*tests))
        return query.first() is not None


def _tracking_store() -> Any:
    from mlflow.server import handlers

    return handlers._get_tracking_store()


def _repository() -> Any:
    from mlflow.server import handlers

    return handlers._get_artifact_repo_mlflow_artifacts()  # type: ignore[no-untyped-call]
