"""A run that nobody keeps, for the ranks of a training that must not write to the job's run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mlplatform.settings.environment import changed_environment

if TYPE_CHECKING:
    from mlflow import ActiveRun


_MLFLOW = ("TRACKING_URI", "REGISTRY_URI", "EXPERIMENT_ID", "EXPERIMENT_NAME", "RUN_ID")
"""What would lead out of the folder, and what MLflow itself sets while it works in there."""

_outside: list[str] = []


@contextmanager
def throwaway_run(experiment: str | None, name: str | None) -> Iterator[ActiveRun]:
    """Open a run in a temporary folder: what user code logs, autologs or registers inside works and is then removed.

    MLflow's file store is made for less than a server, but it needs no database to be migrated first and knows every
    call that logs. It holds for the whole process: a rank has one training, so one thread that tracks.
    """
    import mlflow
    from mlflow.tracking import fluent

    tracking = mlflow.get_tracking_uri()
    with tempfile.TemporaryDirectory(prefix="mlplatform-rank-", ignore_cleanup_errors=True) as folder:
        inside = Path(folder).as_uri()
        variables = {f"MLFLOW_{variable}": None for variable in _MLFLOW}
        with changed_environment({**variables, "MLFLOW_ALLOW_FILE_STORE": "true"}):
            active_experiment = fluent._active_experiment_id
            registry = _explicit_registry_uri()
            _outside.append(tracking)
            try:
                mlflow.set_tracking_uri(f"{inside}/runs")
                mlflow.set_registry_uri(f"{inside}/registry")
                mlflow.set_experiment(experiment or "throwaway")
                yield mlflow.start_run(run_name=name, log_system_metrics=False)
            finally:
                with suppress(Exception):
                    while mlflow.active_run():
                        mlflow.end_run()
                mlflow.set_tracking_uri(tracking)
                # MLflow can set neither back to nothing, and setting an experiment would ask its server for it.
                mlflow.set_registry_uri(registry)  # type: ignore[arg-type]
                fluent._active_experiment_id = active_experiment
                _outside.pop()


def uri_outside() -> str | None:
    """The tracking server that the process had before it opened a throwaway run; None where there is none open."""
    return _outside[-1] if _outside else None


def _explicit_registry_uri() -> str | None:
    """The registry that the program has set; None where it follows from the tracking server."""
    from mlflow.tracking._model_registry import utils

    return utils._registry_uri
