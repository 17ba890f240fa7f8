"""Plugins that MLflow loads in every process that uses it: tags of runs, credentials to send, the default model format.

Named by the entry points in `pyproject.toml`. Imported with MLflow, so it loads neither ray nor torch. Nothing here
raises, because a run must not fail for its tags; omissions are logged once per process.
"""

from __future__ import annotations

import logging
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlplatform.compat import mlflow as mlflow_compat
from mlplatform.compat import mlflow_artifacts
from mlplatform.files.walk import to_keep
from mlplatform.settings.accounts import TrackingAccount
from mlplatform.settings.job import settings
from mlplatform.tracking import reported_runs
from mlplatform.tracking.params import keep_changed_params

if TYPE_CHECKING:
    from requests import PreparedRequest


_log = logging.getLogger(__name__)

_reported: set[str] = set()


class JobContext:
    """`RunContextProvider` of MLflow: runs carry their job's identity as tags, and outside of jobs the person's name.

    MLflow itself would name the account in its credentials file, which everybody shares.

    `MlflowClient.create_run` uses no context provider: runs that it creates carry only what their caller gives.
    """

    def __init__(self) -> None:
        """Change what MLflow has no setting for; it calls this once, during its import."""
        for change, consequence in (
            (mlflow_compat.pickle_models_by_default, "PyTorch models are logged in MLflow's own default format"),
            (
                lambda: mlflow_compat.print_pages(_page_of),
                "MLflow prints the address of its server for programs, not for browsers",
            ),
            (keep_changed_params, "A later attempt that changes a parameter fails"),
            (reported_runs.watch, "The gateway does not end the runs of this job"),
            (
                lambda: mlflow_artifacts.keep_names_in_client(_log_artifacts),
                "Artifacts with `#`, `?` or `%` in their names may be stored under other names",
            ),
        ):
            try:
                change()
            except Exception as error:
                _report(consequence, error)

    def in_context(self) -> bool:
        """Return whether this process belongs to a job, or its environment names the person."""
        try:
            return settings().job_id is not None or settings().names_user
        except Exception as error:
            _report("Runs are not tagged with their job", error)
            return False

    def tags(self) -> dict[str, str]:
        """Return job, attempt, node, image, user and commit, if they are known; outside of jobs the user alone."""
        try:
            from mlplatform.tracking.identity import identity_tags, user_tag

            return identity_tags(settings()) if settings().job_id else user_tag(settings())
        except Exception as error:
            _report("Runs are not tagged with their job", error)
            return {}


class JobsOwnKey:
    """`RequestAuthProvider` of MLflow, selected by MLFLOW_TRACKING_AUTH=mlplatform on the platform's nodes.

    MLflow prefers the account in its credentials file, which the platform mounts, to the token in a job's environment,
    and sends that account to any server that a job names. Here the job's own key takes precedence, and accounts of the
    platform are sent only to the platform's server.
    """

    def get_name(self) -> str:
        """Return the value of MLFLOW_TRACKING_AUTH that selects this provider."""
        return "mlplatform"

    def get_auth(self) -> JobsOwnKey:
        """Return the object that `requests` calls with each request."""
        return self

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Set the key of the job's environment, or remove an account that is not meant for the request's server."""
        server = settings().platform_tracking_uri
        own = TrackingAccount.load().at(str(request.url), server)
        if own.login:
            return request
        if own.token:
            request.headers["Authorization"] = f"Bearer {own.token}"
        elif server and not str(request.url).startswith(f"{server.rstrip('/')}/"):
            request.headers.pop("Authorization", None)
        return request


def _log_artifacts(self: Any, local_dir: str, artifact_path: str | None = None) -> None:
    """Upload every file below a folder, also in linked folders, if all have names that can be stored."""
    folder = Path(local_dir).absolute()
    files = to_keep(folder, "logged")
    paths = [posixpath.join(artifact_path or "", file.relative_to(folder).as_posix()) for file in files]
    for path in paths:
        mlflow_artifacts.exact_path(path)
    for file, path in zip(files, paths, strict=True):
        self.log_artifact(str(file), posixpath.dirname(path) or None)


def _page_of(tracking_uri: str) -> str | None:
    """Return the platform's own MLflow as browsers reach it; None for other servers and invalid settings."""
    try:
        page = settings().page_of(tracking_uri)
        return page if page == settings().tracking_page else None
    except Exception as error:
        _report("MLflow prints the address of its server for programs, not for browsers", error)
        return None


def _report(consequence: str, error: Exception) -> None:
    """Log a consequence once per process: MLflow calls its plugins for every run that is started."""
    if consequence not in _reported:
        _reported.add(consequence)
        _log.warning("%s: %s", consequence, error)
