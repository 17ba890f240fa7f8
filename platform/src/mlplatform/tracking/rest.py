"""MLflow's REST API without MLflow, for where its import, 4 s of a core, would cost more than the request."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TypedDict

import httpx

from mlplatform.credentials import read_mlflow_account
from mlplatform.settings.environment import environment
from mlplatform.settings.job import settings

_SECONDS = 30.0

_ACCOUNT = Path("~/.mlflow/credentials")
"""The one place that MLflow's client takes an account from (`mlflow.utils.credentials`)."""


class _Identity(TypedDict, total=False):
    """What httpx takes."""

    auth: tuple[str, str]
    headers: dict[str, str]


def client(tracking_uri: str) -> httpx.Client:
    """A client of `<tracking_uri>/api/2.0/mlflow/`, with the key, account and certificates that MLflow would use."""
    variables = environment()
    insecure = variables.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1")
    authority = variables.get("MLFLOW_TRACKING_SERVER_CERT_PATH")
    return httpx.Client(
        base_url=f"{tracking_uri.rstrip('/')}/api/2.0/mlflow/",
        **_identity(tracking_uri),
        timeout=_SECONDS,
        verify=ssl.create_default_context(cafile=authority) if authority else not insecure,
    )


def _identity(tracking_uri: str) -> _Identity:
    """Who asks: the job's own account or token; else the platform's account, for the platform's server only.

    The order is that of `mlflow_plugin.JobsOwnKey`.
    """
    variables = environment()
    user, password = variables.get("MLFLOW_TRACKING_USERNAME"), variables.get("MLFLOW_TRACKING_PASSWORD")
    if user and password:
        return {"auth": (user, password)}
    if token := variables.get("MLFLOW_TRACKING_TOKEN"):
        return {"headers": {"Authorization": f"Bearer {token}"}}
    platform = settings().platform_tracking_uri
    foreign = platform is not None and platform.rstrip("/") != tracking_uri.rstrip("/")
    file = _ACCOUNT.expanduser()
    if foreign or not file.is_file():
        return {}
    try:
        return {"auth": read_mlflow_account(file)}
    except KeyError:
        return {}
