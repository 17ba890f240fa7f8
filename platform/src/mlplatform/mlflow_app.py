"""The MLflow server's application (`mlflow server --app-name=mlplatform`): MLflow's own authentication, with its key
read from a file."""

from __future__ import annotations

from typing import Any

from mlplatform.settings import Settings, provide_secret


def create_app() -> Any:
    """MLflow's authenticated application.

    MLflow takes the key that signs its forms from an environment variable only. It is set here, inside the serving
    process, and so stands neither in the container's environment nor in the one that the process was started with.
    """
    provide_secret("MLFLOW_FLASK_SERVER_SECRET_KEY", Settings.load().mlflow_key_file)

    from mlflow.server import auth

    # MLflow refuses every path that it has no rule for, and it has none for its metrics.
    auth.BEFORE_REQUEST_VALIDATORS["/metrics", "GET"] = lambda: _username(auth.authenticate_request()) == "prometheus"
    return auth.create_app()


def _username(authorization: Any) -> str | None:
    return getattr(authorization, "username", None)
