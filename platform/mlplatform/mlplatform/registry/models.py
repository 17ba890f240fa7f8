"""Models by name: register, promote, find the best run, download. A thin layer over MLflow's registry."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlplatform.contract import TAG_DIGEST
from mlplatform.errors import RegistryError
from mlplatform.files import atomic
from mlplatform.registry import lineage, model_files
from mlplatform.registry.lookup import client, registry_errors, resolve, version_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion


_LOWER_IS_BETTER = re.compile(r"loss|error|perplexity|(^|[^a-z])(m[as]e|rmse)([^a-z]|$)", re.IGNORECASE)


def register(model_uri: str, name: str) -> ModelVersion:
    """Make a logged model a version of the registered model `name`; repeating it returns the same version.

    Adds SHA256SUMS to the model's files, which `download` checks them against. The version's tags name the job, commit
    and data sets behind it, if its run has them.

    Args:
        model_uri: as in `mlflow.<flavor>.log_model(...).model_uri` (`models:/<model id>`), or `runs:/<run id>/<path>`.
        name: name of the registered model.

    Raises:
        RegistryError: there is no such model, or the name is not valid.
    """
    import mlflow

    registry = client()
    with registry_errors(f"Model {model_uri} cannot be registered as {name!r}"):
        source = lineage.source_of(registry, model_uri)
        location = lineage.location_of(registry, source)
        # MLflow keeps the address of a logged model, but the location of a run's artifact.
        for version in registry.search_model_versions(f"name = '{name}'"):
            if version.source in (source, location):
                return version
        digest = model_files.record(model_files.open_files(location))
        tags = {TAG_DIGEST: digest, **lineage.origin_tags(registry, source)}
        return mlflow.register_model(source, name, tags=tags)


def promote(
    name: str,
    version: str | int,
    alias: str = "champion",
    *,
    metric: str | None = None,
    mode: Literal["min", "max"] | None = None,
) -> ModelVersion:
    """Point an alias at a version, unless the alias's current version is better.

    MLflow notifies the receivers of its webhooks, even if the alias already points at the version.

    Args:
        name: name of the registered model.
        version: number of its version.
        alias: alias to set.
        metric: compared between the runs of the two versions; None promotes without a comparison.
        mode: "max" if higher values of `metric` are better, else "min"; None means "max", and is rejected for losses
            and errors.

    Raises:
        RegistryError: there is no such model or version, one of the two has no such metric, or the current one is
            better.
    """
    better = _mode(metric, mode) if metric else "max"
    registry = client()
    with registry_errors(f"Version {version} of model {name!r} cannot become {alias!r}"):
        challenger = registry.get_model_version(name, str(version))
        champion = version_of(name, alias)
        if metric:
            _reject_if_worse(registry, challenger, champion, metric, better, alias)
        registry.set_registered_model_alias(name, alias, challenger.version)
    return challenger


def models() -> list[tuple[str, str, dict[str, str]]]:
    """Return every registered model: name, latest version, and the version that each alias points at."""
    registry = client()
    import mlflow

    with registry_errors("The registered models cannot be listed"):
        return [
            (model.name, _latest(registry, model.name), {alias: str(number) for alias, number in model.aliases.items()})
            for model in mlflow.search_registered_models()
        ]


def best_run(experiment: str, metric: str, mode: Literal["min", "max"] | None = None) -> Run:
    """Return the finished run of an experiment with the best last value of a metric.

    Args:
        experiment: name of the experiment.
        metric: name of the metric.
        mode: as for `promote`.

    Raises:
        RegistryError: there is no such experiment, or none of its finished runs has the metric.
    """
    better = _mode(metric, mode)
    mlflow = client()
    with registry_errors(f"Experiment {experiment!r} cannot be searched"):
        found = mlflow.get_experiment_by_name(experiment)
        if found is None:
            names = ", ".join(sorted(e.name for e in mlflow.search_experiments())) or "none"
            raise RegistryError(f"There is no experiment {experiment!r}; there are: {names}.")
        order = "DESC" if better == "max" else "ASC"
        runs = mlflow.search_runs(
            [found.experiment_id], "attributes.status = 'FINISHED'", order_by=[f"metrics.`{metric}` {order}"]
        )
    for run in runs:
        if metric in run.data.metrics:
            return run
    raise RegistryError(f"No finished run of experiment {experiment!r} has a metric {metric!r}; check its name.")


def download(model: str, destination: Path | str) -> Path:
    """Download a model's files into a folder; check each against the gateway's record, or `register`'s checksums.

    The folder appears whole or not at all. A folder that already holds this version is left unchanged, one that holds
    another model is replaced, and one with other files is rejected.

    Args:
        model: `name@alias` or `name/version`, with or without the prefix `models:/`.
        destination: the folder.

    Returns:
        The folder's absolute path.

    Raises:
        RegistryError: there is no such model, version or alias, or a file differs from the registered one.
        UnreachableError, AccessError: the environment names a gateway that does not answer, or rejects the token.
        StorageError: the folder holds other files or cannot be written.
    """
    version = resolve(model)
    folder, what = Path(destination).absolute(), f"{version.name} version {version.version}"
    found = model_files.gateway_record(version)
    if isinstance(found, str):
        print(f"{what} is not compared with the gateway's record: {found}", file=sys.stderr, flush=True)
    record = None if isinstance(found, str) else found
    registry = client()
    with registry_errors(f"Model {model!r} cannot be downloaded"), atomic.alone(folder):
        files = model_files.open_files(lineage.location_of(registry, f"models:/{version.name}/{version.version}"))
        return model_files.fetch(files, folder, what, version.tags.get(TAG_DIGEST), record)


def verify(model: str) -> str:
    """Compare a model's files with their digests in the gateway's record, which needs each file once.

    Args:
        model: as for `download`.

    Returns:
        One sentence: the files are as recorded, or why that is unknown.

    Raises:
        RegistryError: there is no such model, or a file differs, which the message names.
    """
    version = resolve(model)
    record = model_files.gateway_record(version)
    what = f"{version.name} version {version.version}"
    if isinstance(record, str):
        return f"Not verified: {record}"
    registry = client()
    with registry_errors(f"Model {model!r} cannot be verified"):
        files = model_files.open_files(lineage.location_of(registry, f"models:/{version.name}/{version.version}"))
        model_files.check(files, what, record)
    return f"All {len(record)} files are as the gateway has recorded them."


def _latest(registry: MlflowClient, name: str) -> str:
    versions = registry.search_model_versions(f"name = '{name}'", order_by=["version_number DESC"], max_results=1)
    return str(versions[0].version) if versions else "none"


def _mode(metric: str, mode: Literal["min", "max"] | None) -> Literal["min", "max"]:
    if mode is None and _LOWER_IS_BETTER.search(metric):
        raise RegistryError(
            f"Cannot tell whether lower or higher is better for metric {metric!r}; pass --mode min or --mode max "
            '(in Python: mode="min" or mode="max").'
        )
    return mode or "max"


def _reject_if_worse(
    registry: MlflowClient, challenger: ModelVersion, champion: ModelVersion | None, metric: str, mode: str, alias: str
) -> None:
    new = _metric_of(registry, challenger, metric)
    if new is None:
        raise RegistryError(
            f"Version {challenger.version} of model {challenger.name!r} has no number as its metric {metric!r}; "
            "log it to the version's run before promoting."
        )
    old = _metric_of(registry, champion, metric) if champion else None
    if champion and champion.version != challenger.version and old is None:
        raise RegistryError(
            f"Version {champion.version} of model {champion.name!r}, which is {alias!r} now, has no number as its "
            f"metric {metric!r} to compare with; promote without a metric, or by one that both have."
        )
    if champion and old is not None and (new < old if mode == "max" else new > old):
        raise RegistryError(
            f"Version {challenger.version} of model {challenger.name!r} does not get alias {alias!r}: its {metric} of "
            f"{new:.4f} is worse than the {old:.4f} of version {champion.version}."
        )


def _metric_of(registry: MlflowClient, version: ModelVersion, metric: str) -> float | None:
    """Return the last value in the version's run; None if there is none or it is NaN or infinite."""
    value = registry.get_run(version.run_id).data.metrics.get(metric) if version.run_id else None
    # MLflow stores infinity as the largest float.
    return value if value is not None and abs(value) < sys.float_info.max else None
