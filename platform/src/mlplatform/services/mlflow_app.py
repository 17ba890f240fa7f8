"""Applications of the MLflow server, started by `mlflow server --app-name=...`.

`mlplatform`, of the stack, is MLflow with its own authentication, with its keys read from files and its gaps closed
(`compat/mlflow_server.py`). `mlplatform-local`, of the embedded platform, is MLflow with one password. Both open
on training: a browser that has not been there before gets the preferences in `mlflow_first_visit.js`.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from mlplatform.compat import mlflow_server
from mlplatform.compat.mlflow_stores import Signing
from mlplatform.compat.mlflow_tokens import Tokens
from mlplatform.errors import SettingsError
from mlplatform.files import checksums
from mlplatform.services.mlflow_pages import GuardedPages, for_own_pages, with_password
from mlplatform.settings.environment import provide_secret
from mlplatform.settings.job import Settings


def create_app() -> Any:
    """Return MLflow's authenticated Flask application.

    MLflow reads its keys from environment variables only. They are set here, inside the serving process, so they are
    neither in the container's environment nor in the one with which the process was started.
    """
    settings = Settings.load()
    provide_secret("MLFLOW_FLASK_SERVER_SECRET_KEY", settings.mlflow_key_file)
    # Without this key, each worker of the server generates its own, and cannot decrypt what another has stored.
    provide_secret("MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY", settings.mlflow_webhook_key_file)
    _open_on_training()
    key = settings.mlflow_signing_key_file.read_bytes().strip()
    signing = Signing(key, lambda text: checksums.digest(checksums.parse(text)))
    tokens = Tokens(settings.mlflow_tokens_uri)
    app = mlflow_server.authenticated_app("prometheus", "person", "gateway", signing, tokens)
    return GuardedPages(for_own_pages(app))


def create_local_app() -> Any:
    """Return MLflow's application with one password for all, for a server on loopback."""
    _open_on_training()
    file = Settings.load().tracking_password_file
    if file is None or not file.read_text().strip():
        raise SettingsError("MLPLATFORM_TRACKING_PASSWORD_FILE has no password; start MLflow by `mlplatform local up`.")
    return for_own_pages(with_password(mlflow_server.open_app(), file))


def _open_on_training() -> None:
    script = resources.files("mlplatform.services").joinpath("mlflow_first_visit.js").read_text()
    mlflow_server.run_on_index_page(script)
