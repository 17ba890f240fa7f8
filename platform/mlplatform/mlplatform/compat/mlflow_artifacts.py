"""Artifact names exactly as they are, in MLflow's client and server; seen in mlflow 3.17.2.

MLflow puts names into addresses without quoting them (`a#b` is stored as `a`), takes `runs:/<id>/a?b` for an address
with a query, and its server decodes each path until nothing changes (`50%25` becomes `50%`), without an error.
No setting changes that. `tests/embedded/gateway/mlflow/test_artifact_names.py` covers each function here.
"""

from __future__ import annotations

import copy
import functools
import json
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from mlplatform.compat.patches import around
from mlplatform.text.artifact_names import problem_of, sentence

FILES = "/mlflow-artifacts/artifacts"
"""Part of the address of every file that the server proxies."""

_LITERAL = ("runs:/", "models:/", "mlflow-artifacts:/")

_HIDDEN = {ord(character): 0xE000 + ord(character) for character in "#?\n\r\t"}
"""Characters with a meaning in a URL, and others from Unicode's private area that stand for them while it is parsed."""

_SHOWN = {hidden: character for character, hidden in _HIDDEN.items()}


def exact_path(path: str) -> str:
    """Return a path as it is, if it can be stored; replaces `mlflow.utils.uri.validate_path_is_safe`.

    Raises:
        MlflowException: it leads out of its folder, or no store can keep this name.
    """
    problem = problem_of(str(path))
    if problem:
        from mlflow.exceptions import MlflowException

        raise MlflowException.invalid_parameter_value(sentence(path, problem))
    return path


@functools.cache
def keep_names_in_client(log_artifacts: Callable[..., None]) -> None:
    """Let this process send and parse artifact names as they are, and upload folders completely.

    `http_request` of `mlflow.store.artifact.http_artifact_repo`, which all requests for proxied files pass; the
    functions that parse addresses of runs, models and artifacts; `log_artifacts` of `HttpArtifactRepository`, which
    skips linked folders and hangs at a FIFO; its `list_artifacts`, which takes a folder with a single file of its own
    name, `logs/logs`, for a file; and `TrackingServiceClient.set_tag`, by which `log_table` records names in ASCII that
    `load_table` then does not find.
    """
    from mlflow.store.artifact import http_artifact_repo, local_artifact_repo
    from mlflow.store.artifact.mlflow_artifacts_repo import MlflowArtifactsRepository
    from mlflow.store.artifact.models_artifact_repo import ModelsArtifactRepository
    from mlflow.store.artifact.runs_artifact_repo import RunsArtifactRepository
    from mlflow.tracking import artifact_utils
    from mlflow.tracking._tracking_service.client import TrackingServiceClient
    from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS

    _accept_exact_paths(http_artifact_repo, local_artifact_repo)
    for owner, name in (
        (artifact_utils, "append_to_uri_path"),
        (artifact_utils, "_get_root_uri_and_artifact_path"),
        (RunsArtifactRepository, "parse_runs_uri"),
        (ModelsArtifactRepository, "split_models_uri"),
        (MlflowArtifactsRepository, "resolve_uri"),
    ):
        around(owner, name)(_literally)
    http_artifact_repo.HttpArtifactRepository.log_artifacts = log_artifacts  # type: ignore[method-assign]

    @around(http_artifact_repo, "http_request")
    def quoting(http_request: Any, host_creds: Any, endpoint: str, *args: Any, **options: Any) -> Any:
        root, found, folder = host_creds.host.partition(FILES)
        exact_path(f"{folder}{endpoint}".strip("/"))
        quoted = copy.copy(host_creds)
        quoted.host = f"{root}{found}{quote(folder)}"
        return http_request(quoted, quote(endpoint), *args, **options)

    @around(http_artifact_repo.HttpArtifactRepository, "list_artifacts")
    def list_folder(list_artifacts: Any, self: Any, path: str | None = None) -> Any:
        return list_artifacts(self, f"{path.rstrip('/')}/" if path else None)

    @around(RunsArtifactRepository, "_get_logged_model_artifact_repo")
    def of_valid_name(repository: Any, self: Any, run_id: str, name: str) -> Any:
        # MLflow puts the name into a filter as it is; no model can have such a name.
        return None if "'" in name else repository(self, run_id, name)

    @around(TrackingServiceClient, "set_tag")
    def set_readable_tag(set_tag: Any, self: Any, run_id: str, key: str, value: Any, *args: Any, **options: Any) -> Any:
        if key == MLFLOW_LOGGED_ARTIFACTS:
            value = json.dumps(json.loads(value), ensure_ascii=False)
        return set_tag(self, run_id, key, value, *args, **options)


def keep_names_in_server() -> None:
    """Let this server take paths as they arrive, decoded once; the check of permissions sees the same path."""
    from mlflow.server import artifact_router, handlers

    _accept_exact_paths(artifact_router, handlers, sys.modules.get("mlflow.server.auth", handlers))


def _accept_exact_paths(*modules: Any) -> None:
    for module in modules:
        around(module, "validate_path_is_safe")(lambda _, path: exact_path(path))


def _literally(parse: Callable[..., Any], uri: Any, *args: Any, **options: Any) -> Any:
    """Parse an address without a meaning of the characters in `_HIDDEN`."""
    if not str(uri).startswith(_LITERAL):
        return parse(uri, *args, **options)
    hidden = [arg.translate(_HIDDEN) if isinstance(arg, str) and "://" not in arg else arg for arg in args]
    return _show(parse(str(uri).translate(_HIDDEN), *hidden, **options))


def _show(found: Any) -> Any:
    if isinstance(found, tuple):
        return tuple(_show(part) for part in found)
    return found.translate(_SHOWN) if isinstance(found, str) else found
