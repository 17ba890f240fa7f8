"""MLflow's REST API without MLflow, for where its import, 4 s of a core, would cost more than the request."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx

from mlplatform.credentials import read_mlflow_account
from mlplatform.settings import environment, settings

_SECONDS = 30.0
_ACCOUNT = Path("~/.mlflow/credentials")
"""The one place that MLflow's client takes an account from (`mlflow.utils.credentials`)."""


def client(tracking_uri: str) -> httpx.Client:
    """A client of `<tracking_uri>/api/2.0/mlflow/`, with the key, account and certificates that MLflow would use."""
    variables = environment()
    insecure = variables.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1")
    authority = variables.get("MLFLOW_TRACKING_SERVER_CERT_PATH")
    return httpx.Client(
        base_url=f"{tracking_uri.rstrip('/')}/api/2.0/mlflow/",
        auth=account(tracking_uri),
        headers=_token(),
        timeout=_SECONDS,
        verify=ssl.create_default_context(cafile=authority) if authority else not insecure,
    )


def account(tracking_uri: str) -> tuple[str, str] | None:
    """User and password for a server: the job's own; the platform's only for the platform's server, and with no token.

    The order is that of `mlflow_plugin.JobsOwnKey`.
    """
    variables = environment()
    own = variables.get("MLFLOW_TRACKING_USERNAME"), variables.get("MLFLOW_TRACKING_PASSWORD")
    if own[0] and own[1]:
        return own[0], own[1]
    platform = settings().platform_tracking_uri
    foreign = platform is not None and platform.rstrip("/") != tracking_uri.rstrip("/")
    file = _ACCOUNT.expanduser()
    if _token() or foreign or not file.is_file():
        return None
    try:
        return read_mlflow_account(file)
    except KeyError:
        return None


def _token() -> dict[str, str]:
    variables = environment()
    token = variables.get("MLFLOW_TRACKING_TOKEN")
    has_account = variables.get("MLFLOW_TRACKING_USERNAME") and variables.get("MLFLOW_TRACKING_PASSWORD")
    return {"Authorization": f"Bearer {token}"} if token and not has_account else {}
