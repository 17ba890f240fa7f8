"""The MLflow server's application (`mlflow server --app-name=mlplatform`): MLflow with its own authentication, its keys
read from files, and two gaps closed."""

from __future__ import annotations

from typing import Any

from mlplatform.settings import Settings, provide_secret


def create_app() -> Any:
    """MLflow's authenticated application.

    MLflow takes its keys from environment variables only. They are set here, inside the serving process, and so stand
    neither in the container's environment nor in the one that the process was started with.
    """
    settings = Settings.load()
    provide_secret("MLFLOW_FLASK_SERVER_SECRET_KEY", settings.mlflow_key_file)
    # Without it, every worker of the server makes a key of its own, and none can read what another has kept.
    provide_secret("MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY", settings.mlflow_webhook_key_file)

    from mlflow.server import app, auth

    # Before MLflow adds its own check, so that this one comes first.
    app.before_request(_refuse_other_schemes)
    # MLflow refuses every path that it has no rule for, and it has none for its metrics.
    auth.BEFORE_REQUEST_VALIDATORS["/metrics", "GET"] = _is_prometheus
    return auth.create_app()


def _refuse_other_schemes() -> Any:
    """401 for an Authorization header that is not Basic; MLflow takes it for a nameless account and answers 500."""
    from flask import request
    from mlflow.server import auth

    if request.authorization is not None and request.authorization.type != "basic":
        return auth.make_basic_auth_response()
    return None


def _is_prometheus() -> bool:
    from mlflow.server import auth

    return getattr(auth.authenticate_request(), "username", None) == "prometheus"
