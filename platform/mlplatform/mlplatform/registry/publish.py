"""Publishing of trained models: log, register and promote once, however often the job restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from mlplatform.errors import RegistryError
from mlplatform.registry import models

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.models.model import ModelInfo


def publish_model(
    name: str,
    log_model: Callable[[str], ModelInfo],
    run: Run,
    *,
    alias: str = "champion",
    metric: str | None = None,
    mode: Literal["min", "max"] | None = None,
) -> ModelVersion:
    """Log a run's model, register it and point an alias at it; print the result.

    Safe to repeat: a restarted job finds the model that an earlier attempt has logged to the run and registers the
    same version again. A model whose upload was interrupted is logged again. If the promotion is rejected, for example
    because the alias's current version is better, the reason is printed and the version stays registered.

        def log_model(name):
            return mlflow.pytorch.log_model(model, name=name)

        mlplatform.publish_model("digits", log_model, run, metric="test_accuracy")

    Args:
        name: name of the registered model, and of the logged model within the run.
        log_model: logs the model under the given name and returns the result of `mlflow.<flavor>.log_model`. Called
            with `run` as the active run, unless the run already has a complete model of that name.
        run: MLflow run of the model, such as the one of `job_run` or `tuning.best`.
        alias: alias to promote the version to.
        metric: metric of `run` to compare with that of the alias's current version; None promotes without comparing.
        mode: "max" if higher values of `metric` are better, else "min"; see `promote` for the default.

    Returns:
        The version of the registered model: a new one, or the one that an earlier attempt has registered.

    Raises:
        RegistryError: the model cannot be registered under this name.
        SettingsError: MLFLOW_TRACKING_URI is not set.
        mlflow.exceptions.MlflowException: the run's models cannot be listed, or `log_model` failed.
    """
    version = models.register(_logged(name, run) or _log(name, log_model, run), name)
    try:
        models.promote(name, version.version, alias, metric=metric, mode=mode)
        print(f"Model: {name} version {version.version}, alias {alias} (models:/{name}@{alias})")
    except RegistryError as rejection:
        print(rejection)
    return version


def _logged(name: str, run: Run) -> str | None:
    """Return the URI of the newest complete model of this name in the run; None if there is none."""
    import mlflow
    from mlflow.entities import LoggedModelStatus

    found = mlflow.search_logged_models(
        [run.info.experiment_id], f"source_run_id = '{run.info.run_id}' AND name = '{name}'", output_format="list"
    )
    complete = [model for model in found if model.status == LoggedModelStatus.READY]
    return max(complete, key=lambda model: model.creation_timestamp).model_uri if complete else None


def _log(name: str, log_model: Callable[[str], ModelInfo], run: Run) -> str:
    """Call `log_model` with `run` active; return the URI of the logged model."""
    import mlflow

    active = mlflow.active_run()
    if active and active.info.run_id == run.info.run_id:
        return log_model(name).model_uri
    with mlflow.start_run(run.info.run_id, nested=True):
        return log_model(name).model_uri
