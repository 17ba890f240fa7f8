"""Origin of a registered model: its run, job, commit and data sets, and the address of its files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlplatform import contract
from mlplatform.contract import TAG_DIGEST
from mlplatform.registry.lookup import aliases, client, registry_errors, resolve
from mlplatform.tracking import server

if TYPE_CHECKING:
    from mlflow import MlflowClient


TAG_DATA = "mlplatform.data"
"""Tag of a version: the data sets of its run, each as `name@digest`."""

_TAG_COMMIT = "mlflow.source.git.commit"


def describe(model: str) -> dict[str, str]:
    """Return the run, job, commit and data sets behind a model, its digest and the aliases that point at it.

    Args:
        model: as in `lookup.resolve`.

    Returns:
        Name of each fact -> its text; unknown facts are omitted.

    Raises:
        RegistryError: there is no such model, version or alias.
    """
    version = resolve(model)
    mlflow = client()
    with registry_errors(f"Model {model!r} cannot be described"):
        pointing = [alias for alias, number in aliases(mlflow, version.name).items() if number == str(version.version)]
        run = mlflow.get_run(version.run_id) if version.run_id else None
    facts = {
        "model": version.name,
        "version": str(version.version),
        "aliases": ", ".join(sorted(pointing)),
        "digest": version.tags.get(TAG_DIGEST),
        "job": version.tags.get(contract.TAG_JOB),
        "commit": version.tags.get(_TAG_COMMIT),
        "data": version.tags.get(TAG_DATA),
        "run": server.run_url(run) if run else None,
    }
    return {name: value for name, value in facts.items() if value}


def origin_tags(mlflow: MlflowClient, source: str) -> dict[str, str]:
    """Return the tags with a model's origin, from its run and, if that is a run within a job, from the job's run."""
    run_id = _run_of(mlflow, source)
    if run_id is None:
        return {}
    run = mlflow.get_run(run_id)
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


def source_of(mlflow: MlflowClient, model_uri: str) -> str:
    """Return the address under which MLflow will register a model, after a check that the model exists.

    Without the check, MLflow first creates the registered model, then answers 500 for a logged model that does not
    exist, and its client retries that for 4 minutes (3.17).
    """
    kind, _, rest = model_uri.partition(":/")
    first, _, path = rest.partition("/")
    if kind == "models" and first.startswith("m-"):
        mlflow.get_logged_model(first)
    elif kind == "runs":
        run = mlflow.get_run(first)
        found = mlflow.search_logged_models([run.info.experiment_id], f"source_run_id = '{first}' AND name = '{path}'")
        return max(found, key=lambda model: model.creation_timestamp).model_uri if found else model_uri
    return model_uri


def location_of(mlflow: MlflowClient, uri: str) -> str:
    """Return the address of a model's files."""
    kind, _, rest = uri.partition(":/")
    first, _, path = rest.partition("/")
    if kind == "runs":
        return f"{mlflow.get_run(first).info.artifact_uri}/{path}"
    if kind != "models":
        return uri
    if first.startswith("m-"):
        return str(mlflow.get_logged_model(first).artifact_location)
    version = resolve(uri)
    return location_of(mlflow, mlflow.get_model_version_download_uri(version.name, version.version))


def _run_of(mlflow: MlflowClient, source: str) -> str | None:
    """Return the id of the run that has logged a model; None if MLflow has no record of it."""
    kind, _, rest = source.partition(":/")
    first = rest.partition("/")[0]
    if kind == "runs":
        return first
    if kind != "models":
        return None
    run_id = mlflow.get_logged_model(first).source_run_id if first.startswith("m-") else resolve(source).run_id
    return str(run_id) if run_id else None
