"""Private names of the MLflow server, as seen in mlflow 3.17.2, each with the reason why no public name will do.

MLflow's server has no public hooks for authentication. Every name is read before it is replaced, so that a name that a
later version renames aborts the server's start instead of leaving a gap open. `tests/embedded/compat` asserts them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def authenticated_app(metrics_user: str) -> Any:
    """Return MLflow's Flask application with its basic authentication and three gaps closed.

    `mlflow.server.auth.create_app` registers MLflow's own checks. `auth.BEFORE_REQUEST_VALIDATORS` decides per path
    and method: MLflow rejects every path without an entry, and has none for `/metrics`.

    Args:
        metrics_user: account that may read `/metrics`; MLflow lets its administrator read everything.
    """
    from mlflow.server import app, auth

    _disable_direct_transfers()
    # Before MLflow adds its own check, so that this one comes first.
    app.before_request(_reject_other_schemes)

    def is_metrics_user() -> bool:
        return getattr(auth.authenticate_request(), "username", None) == metrics_user

    auth.BEFORE_REQUEST_VALIDATORS["/metrics", "GET"] = is_metrics_user
    return auth.create_app()


def _disable_direct_transfers() -> None:
    """Make clients download and upload artifacts through the server only.

    `build_server_info_payload` of `mlflow.server.handlers`, which `server_info_api` imports by name: MLflow 3.17 offers
    clients the object store's address, here `http://minio:9000`, whatever is configured. A laptop cannot reach that,
    and its client retries for minutes before it falls back to the server.
    """
    from mlflow.server import handlers, server_info_api

    for module in (handlers, server_info_api):
        vars(module)["build_server_info_payload"] = without_direct_transfers(module.build_server_info_payload)


def without_direct_transfers(payload: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Wrap `build_server_info_payload` so that it offers no transfers past the server."""
    from mlflow.utils.server_info import SERVER_INFO_MULTIPART_DOWNLOADS_ENABLED as DOWNLOADS
    from mlflow.utils.server_info import SERVER_INFO_MULTIPART_UPLOADS_ENABLED as UPLOADS

    return lambda: {**payload(), DOWNLOADS: False, UPLOADS: False}


def _reject_other_schemes() -> Any:
    """Return 401 for an Authorization header other than Basic, which MLflow 3.17.2 answers with 500.

    `mlflow.server.auth.make_basic_auth_response`; MLflow mistakes such a header for an account without a name.
    """
    from flask import request
    from mlflow.server import auth

    if request.authorization is not None and request.authorization.type != "basic":
        return auth.make_basic_auth_response()
    return None


def set_accounts(accounts: Sequence[tuple[str, str]]) -> None:
    """Create MLflow's accounts or set their passwords, after an upgrade of the accounts' database.

    `mlflow.server.auth.auth_config` and `auth.store`: MLflow's REST API can create accounts only as an
    administrator of a running server, and the accounts are needed before that starts. `auth_config` is read from the
    file in MLFLOW_AUTH_CONFIG_PATH (`docker/mlflow/basic_auth.ini`), as the server does.

    Args:
        accounts: user and password of each; the user that the file names as administrator becomes one.
    """
    from mlflow.server.auth import auth_config, store

    store.init_db(auth_config.database_uri)  # type: ignore[no-untyped-call]
    for user, password in accounts:
        if store.has_user(user):
            store.update_user(user, password=password)
        else:
            store.create_user(user, password, is_admin=user == auth_config.admin_username)
