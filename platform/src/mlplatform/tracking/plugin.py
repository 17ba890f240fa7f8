"""What MLflow loads from this package by itself, in every process that uses it: tags of runs, whose key is sent, and
how a PyTorch model is written when nobody says how.

Named by the entry points in `pyproject.toml`. Imported with MLflow, so it loads neither ray nor torch; nothing in it
raises, because a run must not fail for its tags.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mlplatform.settings.environment import environment
from mlplatform.settings.job import settings

if TYPE_CHECKING:
    from requests import PreparedRequest


class JobContext:
    """MLflow's `RunContextProvider`: whatever run a process of a job starts carries which job that is.

    `MlflowClient.create_run` asks no context provider: runs that it makes carry what their caller gives.
    """

    def __init__(self) -> None:
        """Made by MLflow once, while it is imported; `mlflow.pytorch` comes later, and only where it is used."""
        from mlflow.utils.import_hooks import register_post_import_hook

        register_post_import_hook(pickle_by_default, "mlflow.pytorch")

    def in_context(self) -> bool:
        """Whether this process belongs to a job."""
        try:
            return settings().job_id is not None
        except Exception:
            return False

    def tags(self) -> dict[str, str]:
        """Job, attempt, node, image, user and commit, as far as they are known."""
        try:
            from mlplatform.tracking.identity import identity_tags

            return identity_tags(settings())
        except Exception:
            return {}


class JobsOwnKey:
    """MLflow's `RequestAuthProvider` `mlplatform`, which MLFLOW_TRACKING_AUTH chooses on the platform's nodes.

    MLflow prefers the account of its credentials file, which the platform mounts, to the token in a job's environment,
    and sends that account to whatever server a job names. Here the job's own key wins, and the file's account goes to
    the platform's server alone.
    """

    def get_name(self) -> str:
        """What MLFLOW_TRACKING_AUTH calls it by."""
        return "mlplatform"

    def get_auth(self) -> JobsOwnKey:
        """What `requests` calls with each request."""
        return self

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Set the key of the job's environment, or take away an account that is not meant for the request's server."""
        variables = environment()
        if variables.get("MLFLOW_TRACKING_USERNAME") and variables.get("MLFLOW_TRACKING_PASSWORD"):
            return request
        if token := variables.get("MLFLOW_TRACKING_TOKEN"):
            request.headers["Authorization"] = f"Bearer {token}"
        elif (own := settings().platform_tracking_uri) and not str(request.url).startswith(f"{own.rstrip('/')}/"):
            request.headers.pop("Authorization", None)
        return request


def pickle_by_default(pytorch: ModuleType) -> None:
    """Let `mlflow.pytorch.log_model(model, name)` work as it did up to MLflow 3.13, and `save_model` likewise.

    Newer ones write "pt2" unless told otherwise, and raise where no `input_example` says what to trace. A caller who
    names a format or gives an example gets what MLflow does with it.
    """
    for name in ("log_model", "save_model"):
        function = getattr(pytorch, name, None)
        if function and "serialization_format" in inspect.signature(function).parameters:
            setattr(pytorch, name, _pickling(function))


def _pickling(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def pickling(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        said = (call.arguments.get(name) for name in ("serialization_format", "input_example"))
        if not call.arguments.get("export_model") and all(value is None for value in said):
            call.arguments["serialization_format"] = "pickle"
        return function(*call.args, **call.kwargs)

    return pickling
