"""The MLflow server's application (`mlflow server --app-name=mlplatform`): MLflow with its own authentication, its keys
read from files, and three gaps closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlplatform.settings.environment import provide_secret
from mlplatform.settings.job import Settings


def create_app() -> Any:
    """MLflow's authenticated application.

    MLflow takes its keys from environment variables only. They are set here, inside the serving process, and so stand
    neither in the container's environment nor in the one that the process was started with.
    """
    settings = Settings.load()
    provide_secret("MLFLOW_FLASK_SERVER_SECRET_KEY", settings.mlflow_key_file)
    # Without it, every worker of the server makes a key of its own, and none can read what another has kept.
    provide_secret("MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY", settings.mlflow_webhook_key_file)

    from mlflow.server import app, auth, handlers, server_info_api

    described = _without_ways_around_it(handlers.build_server_info_payload)
    for module in (handlers, server_info_api):
        vars(module)["build_server_info_payload"] = described
    # Before MLflow adds its own check, so that this one comes first.
    app.before_request(_refuse_other_schemes)
    # MLflow refuses every path that it has no rule for, and it has none for its metrics.
    auth.BEFORE_REQUEST_VALIDATORS["/metrics", "GET"] = _is_prometheus
    return auth.create_app()


def _without_ways_around_it(describe: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Let clients fetch and bring artifacts through the server alone.

    MLflow 3.17 offers them addresses of the object store whatever is set, here `http://minio:9000`. A laptop cannot
    reach that, and its client tries for minutes before it comes back.
    """
    from mlflow.utils.server_info import SERVER_INFO_MULTIPART_DOWNLOADS_ENABLED as DOWNLOADS
    from mlflow.utils.server_info import SERVER_INFO_MULTIPART_UPLOADS_ENABLED as UPLOADS

    return lambda: {**describe(), DOWNLOADS: False, UPLOADS: False}


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
