"""Model versions by `name@alias` or `name/version`, and the registry's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlplatform.errors import RegistryError, SettingsError
from mlplatform.tracking import server

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


def resolve(model: str) -> ModelVersion:
    """Return the version that `name@alias` or `name/version` stands for, with or without the prefix `models:/`.

    Raises:
        RegistryError: there is no such model, version or alias; the message lists the existing ones.
    """
    mlflow = client()
    name, mark, rest = parts(model)
    with registry_errors(f"Model {model!r} cannot be looked up"):
        if mark == "/":
            return mlflow.get_model_version(name, rest)
        known = aliases(mlflow, name)
        if rest in known:
            return mlflow.get_model_version(name, known[rest])
        raise _unknown(name, rest, known)


def version_of(name: str, alias: str) -> ModelVersion | None:
    """Return the version that an alias points at; None if the model has no such alias."""
    mlflow = client()
    with registry_errors(f"Model {name!r} cannot be looked up"):
        number = aliases(mlflow, name).get(alias)
        return mlflow.get_model_version(name, number) if number else None


def parts(model: str) -> tuple[str, str, str]:
    """Return the name, the separator (`@` or `/`), and the alias or the version.

    Raises:
        RegistryError: the model is given as neither name@alias nor name/version.
    """
    rest = model.removeprefix("models:/")
    mark = "@" if "@" in rest else "/"
    name, _, which = rest.partition(mark)
    if not name or not which or "/" in which or (mark == "/" and not which.isdigit()):
        raise RegistryError(f"Model {model!r} is neither name@alias nor name/version; write it as digits@champion.")
    return name, mark, which


def aliases(mlflow: MlflowClient, name: str) -> dict[str, str]:
    """Return alias -> version; empty also if there is no such model."""
    found = mlflow.search_registered_models(f"name = '{name}'")
    return {alias: str(number) for alias, number in found[0].aliases.items()} if found else {}


def client() -> MlflowClient:
    """Return MLflow's client, after a check that its server answers.

    Raises:
        SettingsError: MLFLOW_TRACKING_URI is not set.
        UnreachableError, AccessError: as `tracking.server.check`.
    """
    uri = server.uri()
    if uri is None:
        raise SettingsError("MLFLOW_TRACKING_URI is not set, so no model registry is known; set it to your MLflow.")
    from mlflow import MlflowClient

    server.check(uri)
    return MlflowClient()


@contextmanager
def registry_errors(problem: str) -> Iterator[None]:
    """Turn errors of MLflow's client into RegistryError, whose message begins with `problem`."""
    from mlflow import MlflowException
    from requests import RequestException

    try:
        yield
    except MlflowException as error:
        raise RegistryError(f"{problem}: {error.message.splitlines()[0]}") from error
    except RequestException as error:  # MLflow passes these on where it transfers files
        raise RegistryError(f"{problem}: {str(error).splitlines()[0]}") from error


def _unknown(name: str, alias: str, known: dict[str, str]) -> RegistryError:
    from mlflow import search_registered_models  # unlike the client's, it returns all pages

    if known:
        shown = ", ".join(f"{each} = version {number}" for each, number in sorted(known.items()))
        return RegistryError(f"Model {name!r} has no alias {alias!r}; it has: {shown}.")
    names = sorted(model.name for model in search_registered_models())
    if name in names:
        return RegistryError(
            f"Model {name!r} has no alias {alias!r}, nor any other; "
            f"set it with `mlplatform models promote {name}/VERSION --alias {alias}`."
        )
    return RegistryError(f"There is no model {name!r}; there are: {', '.join(names) or 'none'}.")
