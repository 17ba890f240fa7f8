"""Models by name: register, promote, find the best run, download. Thin over MLflow's registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlplatform import tracking
from mlplatform.errors import RegistryError, SettingsError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion


def register(model_uri: str, name: str) -> ModelVersion:
    """Make a logged model a version of the registered model `name`; the same model again gives the same version.

    Args:
        model_uri: as `mlflow.<flavor>.log_model(...).model_uri` gives it (`models:/<model id>`).

    Raises:
        RegistryError: there is no such model, or the name is not valid.
    """
    import mlflow

    client = _client()
    with _registry_errors(f"Model {model_uri} cannot be registered as {name!r}"):
        _require(client, model_uri)
        known = [found for found in client.search_model_versions(f"name = '{name}'") if found.source == model_uri]
        return known[0] if known else mlflow.register_model(model_uri, name)


def promote(
    name: str,
    version: str | int,
    alias: str = "champion",
    *,
    metric: str | None = None,
    mode: Literal["min", "max"] = "max",
) -> ModelVersion:
    """Point an alias at a version, if it is no worse than the version that the alias points at now.

    Args:
        metric: compared between the runs of the two versions; None promotes without a comparison.
        mode: whether a higher or a lower `metric` is better.

    Raises:
        RegistryError: there is no such model or version, the metric is missing, or the present one is better.
    """
    client = _client()
    with _registry_errors(f"Version {version} of model {name!r} cannot become {alias!r}"):
        challenger = client.get_model_version(name, str(version))
        champion = version_of(name, alias)
        if metric and champion and champion.version != challenger.version:
            _refuse_if_worse(client, challenger, champion, metric, mode, alias)
        client.set_registered_model_alias(name, alias, challenger.version)
    return challenger


def version_of(name: str, alias: str) -> ModelVersion | None:
    """The version that an alias points at; None when the model has no such alias."""
    client = _client()
    with _registry_errors(f"Model {name!r} cannot be looked up"):
        models = client.search_registered_models(f"name = '{name}'")
        number = models[0].aliases.get(alias) if models else None
        return client.get_model_version(name, number) if number else None


def models() -> list[tuple[str, str, dict[str, str]]]:
    """Every registered model: name, latest version, and the version that each alias points at."""
    client = _client()
    with _registry_errors("The registered models cannot be listed"):
        return [
            (model.name, _latest(client, model.name), {alias: str(number) for alias, number in model.aliases.items()})
            for model in client.search_registered_models()
        ]


def _latest(client: MlflowClient, name: str) -> str:
    versions = client.search_model_versions(f"name = '{name}'", order_by=["version_number DESC"], max_results=1)
    return str(versions[0].version) if versions else "none"


def best_run(experiment: str, metric: str, mode: Literal["min", "max"] = "max") -> Run:
    """The finished run of an experiment with the best last value of a metric.

    Raises:
        RegistryError: there is no such experiment, or none of its finished runs has the metric.
    """
    client = _client()
    with _registry_errors(f"Experiment {experiment!r} cannot be searched"):
        found = client.get_experiment_by_name(experiment)
        if found is None:
            names = ", ".join(sorted(e.name for e in client.search_experiments())) or "none"
            raise RegistryError(f"There is no experiment {experiment!r}; there are: {names}.")
        order = "DESC" if mode == "max" else "ASC"
        runs = client.search_runs(
            [found.experiment_id], "attributes.status = 'FINISHED'", order_by=[f"metrics.`{metric}` {order}"]
        )
    for run in runs:
        if metric in run.data.metrics:
            return run
    raise RegistryError(f"No finished run of experiment {experiment!r} has a metric {metric!r}; check its name.")


def download(model: str, destination: Path | str) -> Path:
    """Fetch a model's files into a folder, which is made if it is missing.

    Args:
        model: `name@alias`, or `name/version`.

    Raises:
        RegistryError: there is no such model, version or alias, or the form is not one of the two.
    """
    import mlflow

    if ("@" in model) == ("/" in model):
        raise RegistryError(f"Model {model!r} is neither name@alias nor name/version; write it as digits@champion.")
    _client()
    with _registry_errors(f"Model {model!r} cannot be downloaded"):
        Path(destination).mkdir(parents=True, exist_ok=True)
        return Path(mlflow.artifacts.download_artifacts(f"models:/{model}", dst_path=str(destination)))


def _require(client: MlflowClient, model_uri: str) -> None:
    """Look a model up before anything is made for it.

    MLflow first creates the registered model, then answers 500 for a logged model that is not there, and its client
    repeats that for 4 minutes (3.17).
    """
    kind, _, rest = model_uri.partition(":/")
    name = rest.partition("/")[0]
    if kind == "models" and name.startswith("m-"):
        client.get_logged_model(name)
    elif kind == "runs":
        client.get_run(name)


def _refuse_if_worse(
    client: MlflowClient, challenger: ModelVersion, champion: ModelVersion, metric: str, mode: str, alias: str
) -> None:
    new, old = (_metric_of(client, version, metric) for version in (challenger, champion))
    if new is None:
        raise RegistryError(
            f"Version {challenger.version} of model {challenger.name!r} has no metric {metric!r}; "
            "log it to the version's run before promoting."
        )
    if old is not None and (new < old if mode == "max" else new > old):
        raise RegistryError(
            f"Version {challenger.version} of model {challenger.name!r} stays without alias {alias!r}: its {metric} of "
            f"{new:.4f} is worse than the {old:.4f} of version {champion.version}."
        )


def _metric_of(client: MlflowClient, version: ModelVersion, metric: str) -> float | None:
    return client.get_run(version.run_id).data.metrics.get(metric) if version.run_id else None


def _client() -> MlflowClient:
    uri = tracking.uri()
    if uri is None:
        raise SettingsError("MLFLOW_TRACKING_URI is not set, so no model registry is known; set it to your MLflow.")
    from mlflow import MlflowClient

    tracking.check(uri)
    return MlflowClient()


@contextmanager
def _registry_errors(what: str) -> Iterator[None]:
    from mlflow import MlflowException

    try:
        yield
    except MlflowException as error:
        raise RegistryError(f"{what}: {error.message.splitlines()[0]}") from error
