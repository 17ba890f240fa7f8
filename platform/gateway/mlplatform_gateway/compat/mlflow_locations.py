"""Places of files that MLflow's database accepts, as seen in mlflow 3.17.2, whichever interface a request came by.

MLflow has REST, AJAX, GraphQL and native routes with parsers of their own, and writes a trace's place by five routes,
spans in OpenTelemetry's format among them. All of them end in rows of these tables, so listeners of SQLAlchemy check
the rows. A plugin of `mlflow.tracking_store` sees not all routes of traces. Sources of model versions have a setting,
MLFLOW_CREATE_MODEL_VERSION_SOURCE_VALIDATION_REGEX.
"""

from __future__ import annotations

import posixpath
from typing import Any

SCHEME = "mlflow-artifacts:/"

_TRACE_LOCATION = "mlflow.artifactLocation"

_TRACE_ARCHIVE = "mlflow.trace.archiveLocation"
"""Place of a trace that MLflow has archived, which this server never does: the server reads and deletes files there."""


def guard_locations() -> None:
    """Refuse files of experiments and traces at places other than the server's own."""
    from mlflow.store.tracking.dbmodels.models import SqlExperiment, SqlTraceTag
    from sqlalchemy import event

    event.listen(SqlExperiment, "before_insert", _check_experiment)
    for moment in ("before_insert", "before_update"):
        event.listen(SqlTraceTag, moment, _check_trace_tag)


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


def _elsewhere(location: str) -> Exception:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

    sentence = f"The artifact location {location!r} is not this server's; leave it out, and the server assigns one "
    return MlflowException(f"{sentence}({SCHEME}...).", PERMISSION_DENIED)
