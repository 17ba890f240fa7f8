"""Models by name: register, promote, find the best run, download. Thin over MLflow's registry."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlplatform import contract
from mlplatform.errors import RegistryError, SettingsError
from mlplatform.files import atomic
from mlplatform.registry import model_files
from mlplatform.tracking import server

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel


TAG_DIGEST = "mlplatform.digest"
"""Of a version: one digest over the names and contents of its files."""

TAG_DATA = "mlplatform.data"
"""Of a version: the data sets of its run, `name@digest` each."""

_LOWER_IS_BETTER = re.compile(r"loss|error|perplexity|(^|[^a-z])(m[as]e|rmse)([^a-z]|$)", re.IGNORECASE)

_TAG_COMMIT = "mlflow.source.git.commit"


def register(model_uri: str, name: str) -> ModelVersion:
    """Make a logged model a version of the registered model `name`; the same model again gives the same version.

    With the model's files goes SHA256SUMS, which `download` checks them against. The version's tags say which job,
    commit and data sets have made it, as far as its run knows.

    Args:
        model_uri: as `mlflow.<flavor>.log_model(...).model_uri` gives it (`models:/<model id>`), or
            `runs:/<run id>/<path>`.

    Raises:
        RegistryError: there is no such model, or the name is not valid.
    """
    import mlflow

    client = _client()
    with _registry_errors(f"Model {model_uri} cannot be registered as {name!r}"):
        source = _source(client, model_uri)
        location = _location(client, source)
        # MLflow keeps the address of a logged model, but the location of a run's artifact.
        for version in client.search_model_versions(f"name = '{name}'"):
            if version.source in (source, location):
                return version
        digest = model_files.record(model_files.open_files(location))
        return mlflow.register_model(source, name, tags={TAG_DIGEST: digest, **_origin(client, source)})


def promote(
    name: str,
    version: str | int,
    alias: str = "champion",
    *,
    metric: str | None = None,
    mode: Literal["min", "max"] | None = None,
) -> ModelVersion:
    """Point an alias at a version, if it is no worse than the version that the alias points at now.

    MLflow tells the receivers that `webhooks.add` has named, also when the alias points there already.

    Args:
        metric: compared between the runs of the two versions; None promotes without a comparison.
        mode: whether a higher or a lower `metric` is better; None means higher, and is refused for losses and errors.

    Raises:
        RegistryError: there is no such model or version, one of the two has no such metric, or the present one is
            better.
    """
    better = _mode(metric, mode) if metric else "max"
    client = _client()
    with _registry_errors(f"Version {version} of model {name!r} cannot become {alias!r}"):
        challenger = client.get_model_version(name, str(version))
        champion = version_of(name, alias)
        if metric:
            _refuse_if_worse(client, challenger, champion, metric, better, alias)
        client.set_registered_model_alias(name, alias, challenger.version)
    return challenger


def version_of(name: str, alias: str) -> ModelVersion | None:
    """The version that an alias points at; None when the model has no such alias."""
    client = _client()
    with _registry_errors(f"Model {name!r} cannot be looked up"):
        number = _aliases(client, name).get(alias)
        return client.get_model_version(name, number) if number else None


def resolve(model: str) -> ModelVersion:
    """The version that `name@alias` or `name/version` stands for, also with `models:/` before it.

    Raises:
        RegistryError: there is no such model, version or alias; the message names those that there are.
    """
    client = _client()
    name, mark, rest = _parts(model)
    with _registry_errors(f"Model {model!r} cannot be looked up"):
        if mark == "/":
            return client.get_model_version(name, rest)
        aliases = _aliases(client, name)
        if rest in aliases:
            return client.get_model_version(name, aliases[rest])
        raise _unknown(client, name, rest, aliases)


def describe(model: str) -> dict[str, str]:
    """What made a model: its run, job, commit and data sets, and which aliases point at it, by their names.

    Args:
        model: as `resolve` takes it.
    """
    version = resolve(model)
    client = _client()
    with _registry_errors(f"Model {model!r} cannot be described"):
        aliases = [alias for alias, number in _aliases(client, version.name).items() if number == str(version.version)]
        run = client.get_run(version.run_id) if version.run_id else None
    shown = {
        "model": version.name,
        "version": str(version.version),
        "aliases": ", ".join(sorted(aliases)),
        "digest": version.tags.get(TAG_DIGEST),
        "job": version.tags.get(contract.TAG_JOB),
        "commit": version.tags.get(_TAG_COMMIT),
        "data": version.tags.get(TAG_DATA),
        "run": server.run_url(run) if run else None,
    }
    return {key: value for key, value in shown.items() if value}


def models() -> list[tuple[str, str, dict[str, str]]]:
    """Every registered model: name, latest version, and the version that each alias points at."""
    client = _client()
    with _registry_errors("The registered models cannot be listed"):
        return [
            (model.name, _latest(client, model.name), {alias: str(number) for alias, number in model.aliases.items()})
            for model in _registered(client)
        ]


def _registered(client: MlflowClient) -> Iterator[RegisteredModel]:
    token = None
    while True:
        page = client.search_registered_models(page_token=token)
        yield from page
        if not (token := page.token):
            return


def _latest(client: MlflowClient, name: str) -> str:
    versions = client.search_model_versions(f"name = '{name}'", order_by=["version_number DESC"], max_results=1)
    return str(versions[0].version) if versions else "none"


def best_run(experiment: str, metric: str, mode: Literal["min", "max"] | None = None) -> Run:
    """The finished run of an experiment with the best last value of a metric.

    Args:
        mode: as for `promote`.

    Raises:
        RegistryError: there is no such experiment, or none of its finished runs has the metric.
    """
    better = _mode(metric, mode)
    client = _client()
    with _registry_errors(f"Experiment {experiment!r} cannot be searched"):
        found = client.get_experiment_by_name(experiment)
        if found is None:
            names = ", ".join(sorted(e.name for e in client.search_experiments())) or "none"
            raise RegistryError(f"There is no experiment {experiment!r}; there are: {names}.")
        order = "DESC" if better == "max" else "ASC"
        runs = client.search_runs(
            [found.experiment_id], "attributes.status = 'FINISHED'", order_by=[f"metrics.`{metric}` {order}"]
        )
    for run in runs:
        if metric in run.data.metrics:
            return run
    raise RegistryError(f"No finished run of experiment {experiment!r} has a metric {metric!r}; check its name.")


def download(model: str, destination: Path | str) -> Path:
    """Fetch a model's files into a folder and check each against the checksums that `register` has recorded.

    The folder appears whole or not at all. One that holds this version already is left as it is, one that holds
    another model is replaced by it, and one with other files is refused.

    Args:
        model: `name@alias` or `name/version`, also with `models:/` before it.

    Raises:
        RegistryError: there is no such model, version or alias, or a file is not what was registered.
        StorageError: the folder holds other files or cannot be written.
    """
    version = resolve(model)
    folder = Path(destination).absolute()
    client = _client()
    with _registry_errors(f"Model {model!r} cannot be downloaded"), atomic.alone(folder):
        files = model_files.open_files(_location(client, f"models:/{version.name}/{version.version}"))
        return model_files.fetch(
            files, folder, f"{version.name} version {version.version}", version.tags.get(TAG_DIGEST)
        )


def _mode(metric: str, mode: Literal["min", "max"] | None) -> Literal["min", "max"]:
    if mode is None and _LOWER_IS_BETTER.search(metric):
        raise RegistryError(f"Of metric {metric!r} it is not known whether lower is better; say mode min, or max.")
    return mode or "max"


def _parts(model: str) -> tuple[str, str, str]:
    """Name, the sign after it, and the alias or the version."""
    rest = model.removeprefix("models:/")
    mark = "@" if "@" in rest else "/"
    name, _, which = rest.partition(mark)
    if not name or not which or "/" in which or (mark == "/" and not which.isdigit()):
        raise RegistryError(f"Model {model!r} is neither name@alias nor name/version; write it as digits@champion.")
    return name, mark, which


def _aliases(client: MlflowClient, name: str) -> dict[str, str]:
    """Alias -> version; empty also where there is no such model."""
    models = client.search_registered_models(f"name = '{name}'")
    return {alias: str(number) for alias, number in models[0].aliases.items()} if models else {}


def _unknown(client: MlflowClient, name: str, alias: str, aliases: dict[str, str]) -> RegistryError:
    if aliases:
        known = ", ".join(f"{known} = version {number}" for known, number in sorted(aliases.items()))
        return RegistryError(f"Model {name!r} has no alias {alias!r}; it has: {known}.")
    names = sorted(model.name for model in _registered(client))
    if name in names:
        return RegistryError(f"Model {name!r} has no alias {alias!r}, and no other; `promote` gives one.")
    return RegistryError(f"There is no model {name!r}; there are: {', '.join(names) or 'none'}.")


def _source(client: MlflowClient, model_uri: str) -> str:
    """The address under which MLflow will know the model; it is looked up before anything is made for it.

    MLflow first creates the registered model, then answers 500 for a logged model that is not there, and its client
    repeats that for 4 minutes (3.17).
    """
    kind, _, rest = model_uri.partition(":/")
    first, _, path = rest.partition("/")
    if kind == "models" and first.startswith("m-"):
        client.get_logged_model(first)
    elif kind == "runs":
        run = client.get_run(first)
        found = client.search_logged_models([run.info.experiment_id], f"source_run_id = '{first}' AND name = '{path}'")
        return max(found, key=lambda model: model.creation_timestamp).model_uri if found else model_uri
    return model_uri


def _location(client: MlflowClient, uri: str) -> str:
    """Where the files of a model lie."""
    kind, _, rest = uri.partition(":/")
    first, _, path = rest.partition("/")
    if kind == "runs":
        return f"{client.get_run(first).info.artifact_uri}/{path}"
    if kind != "models":
        return uri
    if first.startswith("m-"):
        return str(client.get_logged_model(first).artifact_location)
    version = resolve(uri)
    return _location(client, client.get_model_version_download_uri(version.name, version.version))


def _origin(client: MlflowClient, source: str) -> dict[str, str]:
    """The tags that say what made a model, from its run and, where that is a run within a job, from the job's."""
    run_id = _run_of(client, source)
    if run_id is None:
        return {}
    run = client.get_run(run_id)
    job_id = run.data.tags.get(contract.TAG_JOB)
    job = server.find_run(job_id) if job_id else None
    runs = [run, job] if job and job.info.run_id != run_id else [run]
    commits = [tags[_TAG_COMMIT] for tags in (one.data.tags for one in runs) if tags.get(_TAG_COMMIT)]
    inputs = [entry.dataset for one in runs if one.inputs for entry in one.inputs.dataset_inputs]
    tags = {
        contract.TAG_JOB: job_id,
        _TAG_COMMIT: commits[0] if commits else None,
        TAG_DATA: ", ".join(sorted({f"{data.name}@{data.digest}" for data in inputs})),
    }
    return {tag: value for tag, value in tags.items() if value}


def _run_of(client: MlflowClient, source: str) -> str | None:
    kind, _, rest = source.partition(":/")
    first = rest.partition("/")[0]
    if kind == "runs":
        return first
    if kind != "models":
        return None
    run_id = client.get_logged_model(first).source_run_id if first.startswith("m-") else resolve(source).run_id
    return str(run_id) if run_id else None


def _refuse_if_worse(
    client: MlflowClient, challenger: ModelVersion, champion: ModelVersion | None, metric: str, mode: str, alias: str
) -> None:
    new = _metric_of(client, challenger, metric)
    if new is None:
        raise RegistryError(
            f"Version {challenger.version} of model {challenger.name!r} has no number as its metric {metric!r}; "
            "log it to the version's run before promoting."
        )
    old = _metric_of(client, champion, metric) if champion else None
    if champion and champion.version != challenger.version and old is None:
        raise RegistryError(
            f"Version {champion.version} of model {champion.name!r}, which is {alias!r} now, has no number as its "
            f"metric {metric!r} to compare with; promote without a metric, or by one that both have."
        )
    if champion and old is not None and (new < old if mode == "max" else new > old):
        raise RegistryError(
            f"Version {challenger.version} of model {challenger.name!r} stays without alias {alias!r}: its {metric} of "
            f"{new:.4f} is worse than the {old:.4f} of version {champion.version}."
        )


def _metric_of(client: MlflowClient, version: ModelVersion, metric: str) -> float | None:
    """The last value in the version's run; None where there is none or it is NaN or infinite."""
    value = client.get_run(version.run_id).data.metrics.get(metric) if version.run_id else None
    # MLflow keeps infinity as the largest number there is.
    return value if value is not None and abs(value) < sys.float_info.max else None


def _client() -> MlflowClient:
    uri = server.uri()
    if uri is None:
        raise SettingsError("MLFLOW_TRACKING_URI is not set, so no model registry is known; set it to your MLflow.")
    from mlflow import MlflowClient

    server.check(uri)
    return MlflowClient()


@contextmanager
def _registry_errors(what: str) -> Iterator[None]:
    from mlflow import MlflowException
    from requests import RequestException

    try:
        yield
    except MlflowException as error:
        raise RegistryError(f"{what}: {error.message.splitlines()[0]}") from error
    except RequestException as error:  # what MLflow lets through where it moves files
        raise RegistryError(f"{what}: {str(error).splitlines()[0]}") from error
