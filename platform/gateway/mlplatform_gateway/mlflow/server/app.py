"""Applications of the MLflow server, started by `mlflow server --app-name=...`, as its plugins of `mlflow.app`.

`mlplatform`, of the stack, is MLflow with its own authentication, with its keys read from files and with the rights of
the platform's role accounts. `mlplatform-local`, of the embedded platform, is MLflow with one password. Both report
changes to the gateway, and open on training.
"""

from __future__ import annotations

import hmac
from typing import Any

from mlplatform.compat import mlflow_artifacts
from mlplatform.errors import SettingsError
from mlplatform.secrets.credentials import TokenFile, read_mlflow_account
from mlplatform.settings.environment import set_environment
from mlplatform.settings.job import Settings
from mlplatform_gateway.compat import mlflow_locations, mlflow_retention
from mlplatform_gateway.mlflow.server.changes import Reporter, report_changes
from mlplatform_gateway.mlflow.server.pages import for_own_pages, opening_on_training, with_exact_names, with_password
from mlplatform_gateway.settings import MlflowServerSettings


def create_app() -> Any:
    """Return MLflow's authenticated application.

    MLflow reads its keys from environment variables only. They are set here, inside the serving process, so they are
    neither in the container's environment nor in the one with which the process was started.
    """
    settings = MlflowServerSettings.load()
    key = settings.mlflow_key_file.read_text().strip()
    # Without these, each worker of the server makes its own, and cannot read what another has signed or encrypted.
    forms = hmac.digest(key.encode(), b"forms", "sha256").hex()
    set_environment({"MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": key, "MLFLOW_FLASK_SERVER_SECRET_KEY": forms})
    from mlflow.server import app, auth

    mlflow_locations.guard_locations()
    mlflow_retention.add_removals(app)
    mlflow_artifacts.keep_names_in_server()
    report_changes(app, Reporter(settings.ray_address, read_mlflow_account(settings.mlflow_gateway_file)[1]))
    return for_own_pages(opening_on_training(with_exact_names(auth.create_app())))


def create_local_app() -> Any:
    """Return MLflow's application with one password for all, for a server on loopback."""
    settings = Settings.load()
    file, token = settings.tracking_password_file, settings.token_file
    if file is None or not file.read_text().strip() or token is None:
        raise SettingsError("MLPLATFORM_TRACKING_PASSWORD_FILE has no password; start MLflow by `mlplatform local up`.")
    from mlflow.server import app, fastapi_app

    mlflow_artifacts.keep_names_in_server()
    report_changes(app, Reporter(settings.ray_address, TokenFile(token).read()))
    return for_own_pages(opening_on_training(with_password(with_exact_names(fastapi_app.create_fastapi_app()), file)))
