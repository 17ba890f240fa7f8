"""Private names of the MLflow server, as seen in mlflow 3.17.2, for its databases and its accounts before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

ADMINISTRATORS = ("admin", "gateway", "prometheus")
"""Administrators at MLflow, which lets nobody else read `/metrics` or use a route of ours; the last is limited to its
metrics (`mlplatform_gateway/mlflow/server/rights.py`)."""


def migrations() -> dict[str, Path]:
    """Return the folder with the migrations of each of MLflow's databases.

    `mlflow.store.db_migrations` and `mlflow.server.auth.db.migrations`: MLflow has no public list of revisions.
    """
    import mlflow

    package = Path(mlflow.__file__).parent
    return {"mlflow": package / "store" / "db_migrations", "mlflow_auth": package / "server/auth/db/migrations"}


def set_accounts(accounts: Sequence[tuple[str, str]]) -> None:
    """Create MLflow's accounts or set their passwords, after an upgrade of the accounts' database.

    `mlflow.server.auth.auth_config` and `auth.store`: MLflow's REST API needs an administrator of a running server,
    and cannot give one a new password after the old one is lost. `auth_config` is read from the file in
    MLFLOW_AUTH_CONFIG_PATH (`docker/mlflow/basic_auth.ini`), as the server does.

    Args:
        accounts: user and password of each; those in `ADMINISTRATORS` become administrators.
    """
    from mlflow.server.auth import auth_config, store

    store.init_db(auth_config.database_uri)  # type: ignore[no-untyped-call]
    for user, password in accounts:
        if store.has_user(user):
            store.update_user(user, password=password, is_admin=user in ADMINISTRATORS)
        else:
            store.create_user(user, password, is_admin=user in ADMINISTRATORS)
