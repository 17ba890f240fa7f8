"""Artifact names exactly as they are, in MLflow's client and server; seen in mlflow 3.17.2.

MLflow puts names into addresses without quoting them (`a#b` is stored as `a`), takes `runs:/<id>/a?b` for an address
with a query, and its server decodes each path until nothing changes (`50%25` becomes `50%`), without an error.
No setting changes that. Every name is read before it is replaced, so that a renamed one is noticed.
`tests/embedded/mlflow_server/test_artifact_names.py` covers each.
"""

from __future__ import annotations

import copy
import functools
import json
import re
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

FILES = "/mlflow-artifacts/artifacts"
"""Part of the address of every file that the server proxies."""

_LITERAL = ("runs:/", "models:/", "mlflow-artifacts:/")

_HIDDEN = {ord(character): 0xE000 + ord(character) for character in "#?\n\r\t"}
"""Characters with a meaning in a URL, and others from Unicode's private area that stand for them while it is parsed."""

_SHOWN = {hidden: character for character, hidden in _HIDDEN.items()}

_UNSTORABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\ufffd]")
"""Control characters, which neither routes nor S3's XML can carry, and what stands for bytes that are not UTF-8."""

_LONGEST_NAME, _LONGEST_PATH = 255, 1024
"""Bytes of a name in a file system and of a key in S3."""


def exact_path(path: str) -> str:
    """Return a path as it is, if it can be stored; replaces `mlflow.utils.uri.validate_path_is_safe`.

    Raises:
        MlflowException: it leads out of its folder, or no store can keep this name.
    """
    problem = problem_of(str(path))
    if problem:
        from mlflow.exceptions import MlflowException
        from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

        raise MlflowException(_sentence(path, problem), INVALID_PARAMETER_VALUE)
    return path


def _sentence(path: str, problem: str) -> str:
    return f"Invalid path: the artifact name {path!r} {problem}."


def problem_of(path: str) -> str | None:
    """Return why no store can keep a path, or None."""
    if _UNSTORABLE.search(path):
        return "has a control character or is not UTF-8; rename the file"
    # Some object stores take both for separators.
    parts = re.split(r"[/\\]", path)
    if path.startswith("/") or ".." in parts or ("\\" in path and "." in parts):
        return "leads out of its folder; use a name without `..`"
    if max(len(part.encode()) for part in path.split("/")) > _LONGEST_NAME or len(path.encode()) > _LONGEST_PATH:
        return f"is too long; use names of at most {_LONGEST_NAME} and paths of at most {_LONGEST_PATH} bytes"
    return None


@functools.cache
def keep_names_in_client(log_artifacts: Callable[..., None]) -> None:
    """Let this process send and parse artifact names as they are, and upload folders completely.

    `http_request` of `mlflow.store.artifact.http_artifact_repo`, which all requests for proxied files pass; the
    functions that parse addresses of runs, models and artifacts; `log_artifacts` of `HttpArtifactRepository`, which
    skips linked folders and hangs at a FIFO, and its `list_artifacts`; `TrackingServiceClient.set_tag`, by
    which `log_table` records names in ASCII that `load_table` then does not find.
    """
    from mlflow.store.artifact import http_artifact_repo, local_artifact_repo
    from mlflow.store.artifact.mlflow_artifacts_repo import MlflowArtifactsRepository as Artifacts
    from mlflow.store.artifact.models_artifact_repo import ModelsArtifactRepository as Models
    from mlflow.store.artifact.runs_artifact_repo import RunsArtifactRepository as Runs
    from mlflow.tracking import artifact_utils
    from mlflow.tracking._tracking_service.client import TrackingServiceClient

    repository = http_artifact_repo.HttpArtifactRepository
    for owner, name, replacement in (
        (http_artifact_repo, "http_request", _quoting(vars(http_artifact_repo)["http_request"])),
        (http_artifact_repo, "validate_path_is_safe", exact_path),
        (local_artifact_repo, "validate_path_is_safe", exact_path),
        (repository, "log_artifacts", log_artifacts),
        (repository, "list_artifacts", _of_folder(repository.list_artifacts)),
        (artifact_utils, "append_to_uri_path", _literally(vars(artifact_utils)["append_to_uri_path"])),
        (artifact_utils, root := "_get_root_uri_and_artifact_path", _literally(getattr(artifact_utils, root))),
        (Runs, "parse_runs_uri", staticmethod(_literally(Runs.parse_runs_uri))),
        (Models, "split_models_uri", staticmethod(_literally(Models.split_models_uri))),
        (Artifacts, "resolve_uri", staticmethod(_literally(Artifacts.resolve_uri))),
        (Runs, "_get_logged_model_artifact_repo", _of_valid_names(Runs._get_logged_model_artifact_repo)),
        (TrackingServiceClient, "set_tag", _in_unicode(TrackingServiceClient.set_tag)),
    ):
        setattr(owner, name, replacement)


def keep_names_in_server() -> None:
    """Let this server take paths as they arrive, decoded once; the check of permissions sees the same path."""
    from mlflow.server import artifact_router, handlers

    for module in (artifact_router, handlers, sys.modules.get("mlflow.server.auth", handlers)):
        vars(module)["validate_path_is_safe"] = exact_path


class ExactNames:
    """An ASGI application around MLflow's that refuses names which a client has sent without quoting them.

    Clients without this package send `a?b` as `a` with a query, and `a%2Fb` as a file in a folder. What they send as
    `a` for `a#b` cannot be distinguished from `a`.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        _, found, path = scope.get("path", "").partition(f"{FILES}/")
        unquoted = found and path and (scope["query_string"] or b"%2f" in scope["raw_path"].lower())
        problem = "has `?` or `%2F`; install mlplatform here, or rename the file" if unquoted else problem_of(path)
        if problem:
            error = {"error_code": "INVALID_PARAMETER_VALUE", "message": _sentence(path, problem)}
            body = json.dumps(error).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        await self._app(scope, receive, send)


def _quoting(http_request: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(http_request)
    def request(host_creds: Any, endpoint: str, *args: Any, **kwargs: Any) -> Any:
        root, found, folder = host_creds.host.partition(FILES)
        exact_path(f"{folder}{endpoint}".strip("/"))
        quoted = copy.copy(host_creds)
        quoted.host = f"{root}{found}{quote(folder)}"
        return http_request(quoted, quote(endpoint), *args, **kwargs)

    return request


def _literally(parse: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(parse)
    def parsed(uri: Any, *args: Any, **kwargs: Any) -> Any:
        if not str(uri).startswith(_LITERAL):
            return parse(uri, *args, **kwargs)
        hidden = [arg.translate(_HIDDEN) if isinstance(arg, str) and "://" not in arg else arg for arg in args]
        return _show(parse(str(uri).translate(_HIDDEN), *hidden, **kwargs))

    return parsed


def _show(found: Any) -> Any:
    if isinstance(found, tuple):
        return tuple(_show(part) for part in found)
    return found.translate(_SHOWN) if isinstance(found, str) else found


def _of_folder(list_artifacts: Callable[..., Any]) -> Callable[..., Any]:
    """List a path as a folder: MLflow takes one that holds a single file of its own name, `logs/logs`, for a file."""

    @functools.wraps(list_artifacts)
    def list_folder(self: Any, path: str | None = None) -> Any:
        return list_artifacts(self, f"{path.rstrip('/')}/" if path else None)

    return list_folder


def _of_valid_names(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look for a logged model only under a name that a model can have; MLflow puts it into a filter as it is."""

    def repository(self: Any, run_id: str, name: str) -> Any:
        return None if "'" in name else original(self, run_id, name)

    return repository


def _in_unicode(set_tag: Callable[..., Any]) -> Callable[..., Any]:
    from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS

    @functools.wraps(set_tag)
    def set_readable(self: Any, run_id: str, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        if key == MLFLOW_LOGGED_ARTIFACTS:
            value = json.dumps(json.loads(value), ensure_ascii=False)
        return set_tag(self, run_id, key, value, *args, **kwargs)

    return set_readable
