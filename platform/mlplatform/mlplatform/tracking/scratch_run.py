"""A run in a temporary folder, for the ranks of a training that must not write to the job's run."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mlplatform.compat import mlflow as mlflow_compat
from mlplatform.settings.environment import changed_environment

if TYPE_CHECKING:
    from mlflow import ActiveRun


_MLFLOW = ("TRACKING_URI", "REGISTRY_URI", "EXPERIMENT_ID", "EXPERIMENT_NAME", "RUN_ID")
"""Variables that would point outside the folder, and those that MLflow itself sets while it works in there."""

_log = logging.getLogger(__name__)

_outside: list[str] = []


@contextmanager
def scratch_run(experiment: str | None, name: str | None) -> Iterator[ActiveRun]:
    """Open a run in a temporary folder: user code can log, autolog and register in it; the end removes everything.

    MLflow's file store is meant for less than a server, but it needs no database migration first and supports every
    logging call. The run applies to the whole process: a rank has one training, so one thread that tracks.
    """
    import mlflow

    tracking = mlflow.get_tracking_uri()
    with tempfile.TemporaryDirectory(prefix="mlplatform-rank-", ignore_cleanup_errors=True) as folder:
        inside = Path(folder).as_uri()
        variables: dict[str, str | None] = {f"MLFLOW_{variable}": None for variable in _MLFLOW}
        variables["MLFLOW_ALLOW_FILE_STORE"] = "true"
        with changed_environment(variables), _entered_from(tracking), mlflow_compat.restored_addresses():
            try:
                mlflow.set_tracking_uri(f"{inside}/runs")
                mlflow.set_registry_uri(f"{inside}/registry")
                mlflow.set_experiment(experiment or "scratch")
                yield mlflow.start_run(run_name=name, log_system_metrics=False)
            finally:
                _end_all()


@contextmanager
def _entered_from(tracking_uri: str) -> Iterator[None]:
    _outside.append(tracking_uri)
    try:
        yield
    finally:
        _outside.pop()


def uri_outside() -> str | None:
    """Return the tracking server that the process had before it opened a scratch run; None if none is open."""
    return _outside[-1] if _outside else None


def _end_all() -> None:
    import mlflow

    try:
        while mlflow.active_run():
            mlflow.end_run()
    except Exception as error:
        _log.warning("A scratch run was not ended, its folder is removed all the same: %s", error)
