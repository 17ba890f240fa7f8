"""Places of files that MLflow's database accepts, as seen in mlflow 3.17.2, whichever interface a request came by.

MLflow has REST, AJAX, GraphQL and native routes with parsers of their own, and writes a trace's place by five routes,
spans in OpenTelemetry's format among them. All of them end in rows of these tables, so listeners of SQLAlchemy check
the rows. A plugin of `mlflow.tracking_store` sees neither model versions nor all routes of traces.
"""

from __future__ import annotations

import posixpath
from typing import Any

SCHEME = "mlflow-artifacts:/"

_PROMPT = "dummy-source"
"""Source of every prompt, which has no files (`mlflow.prompt`)."""

_TRACE_LOCATION = "mlflow.artifactLocation"

_TRACE_ARCHIVE = "mlflow.trace.archiveLocation"
"""Place of a trace that MLflow has archived, which this server never does: the server reads and deletes files there."""


def guard_locations() -> None:
    """Refuse files at places other than the server's own: of experiments, traces and model versions."""
    from mlflow.store.model_registry.dbmodels.models import SqlModelVersion
    from mlflow.store.tracking.dbmodels.models import SqlExperiment, SqlTraceTag
    from sqlalchemy import event

    for table, check in ((SqlExperiment, _check_experiment), (SqlTraceTag, _check_trace_tag)):
        for moment in ("before_insert", "before_update"):
            event.listen(table, moment, check)
    # MLflow overwrites the source of a version that is deleted, and changes it at no other time.
    event.listen(SqlModelVersion, "before_insert", _check_version)


def path_of(location: str) -> str | None:
    """Return the path in the artifact store; None if the location is elsewhere or not in its plain form."""
    path = location.removeprefix(SCHEME).removesuffix("/")
    plain = location.startswith(SCHEME) and path == posixpath.normpath(path)
    return path if plain and not path.startswith(("/", "..")) and not set("%?#\\") & set(path) else None


def _check_experiment(mapper: Any, connection: Any, experiment: Any) -> None:
    if experiment.artifact_location and path_of(experiment.artifact_location) is None:
        raise _elsewhere(experiment.artifact_location)


def _check_trace_tag(mapper: Any, connection: Any, tag: Any) -> None:
    """Refuse a place of a trace's files that is not the one which the server has assigned."""
    from sqlalchemy import inspect as state_of

    if tag.key not in (_TRACE_LOCATION, _TRACE_ARCHIVE):
        return
    state = state_of(tag)
    moved = state.persistent and state.attrs.value.history.has_changes()
    if tag.key == _TRACE_ARCHIVE or moved or path_of(tag.value or "") is None:
        raise _elsewhere(tag.value)


def _check_version(mapper: Any, connection: Any, version: Any) -> None:
    """Refuse a model's source elsewhere; three levels are all files of one run, and a model is a part of them."""
    source = version.source or ""
    if source in ("", _PROMPT) or source.startswith("models:/"):
        return
    path = path_of(source)
    if path is None or path.count("/") < 3:
        raise _refusal(
            f"The model's source {source!r} is not on this server; log the model to a run, and register that."
        )


def _elsewhere(location: str) -> Exception:
    return _refusal(
        f"The artifact location {location!r} is not this server's; leave it out, and the server assigns one "
        f"({SCHEME}...)."
    )


def _refusal(message: str) -> Exception:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

    return MlflowException(message, PERMISSION_DENIED)
