"""Private names of the MLflow server, as seen in mlflow 3.17.2, each with the reason why no public name will do.

Every name is read before it is replaced, so that a name that a later version renames aborts the server's start instead
of leaving a gap open. `tests/embedded/compat` asserts them all. What only needs requests and answers is in
`services/mlflow_*.py`, around the application that MLflow's documented `mlflow.app` plugin returns.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlplatform.compat import mlflow_artifacts, mlflow_locations, mlflow_retention
from mlplatform.errors import HostError

_EXPIRED = "/api/2.0/mlflow/mlplatform/expired"
"""Route of our own, beside MLflow's, so that the gateway reaches it in the same way."""

ADMINISTRATORS = ("admin", "gateway", "prometheus")
"""Administrators at MLflow, which lets nobody else read `/metrics` or use a route of ours; the last is limited to its
metrics (`services/mlflow_rights.py`)."""


def authenticated_app() -> Any:
    """Return MLflow's application with its basic authentication, its own files only, and the route of removals.

    `mlflow.server.auth.create_app`, which `mlflow server --app-name=basic-auth` uses: it refuses a route that it does
    not know, such as ours, to everybody but administrators.
    """
    from mlflow.server import app, auth
    from mlflow.server.handlers import catch_mlflow_exception

    disable_direct_transfers()
    mlflow_locations.guard_locations()
    view = catch_mlflow_exception(_expired)  # type: ignore[no-untyped-call]
    app.add_url_rule(_EXPIRED, "mlplatform_expired", view, methods=["GET", "POST"])
    mlflow_artifacts.keep_names_in_server()
    return mlflow_artifacts.ExactNames(auth.create_app())


def _expired() -> Any:
    """List what was deleted some days ago, or remove one of it."""
    from flask import request

    if request.method == "GET":
        days = _days(request.args.get("days", type=float))
        return {"expired": mlflow_retention.expired(days, request.args.get("after", ""))}
    values = request.get_json()
    return {"removed": mlflow_retention.remove(str(values.get("id", "")), _days(values.get("days")))}


def _days(given: Any) -> float:
    """Return a number of days that a request names; a missing one must not remove everything."""
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
        raise MlflowException(f"Invalid days {given!r}: pass a number, 0 or more.", INVALID_PARAMETER_VALUE)
    return float(given)


def open_app() -> Any:
    """Return MLflow's application without authentication, as `mlflow server` does without an application's name.

    `mlflow.server.fastapi_app.create_fastapi_app`, which adds to the Flask application what MLflow 3 has beside it.
    """
    from mlflow.server.fastapi_app import create_fastapi_app

    mlflow_artifacts.keep_names_in_server()
    return mlflow_artifacts.ExactNames(create_fastapi_app())


SERVE = (sys.executable, "-c", f"from {__name__} import serve; serve()")
"""`mlflow server` of the same interpreter, in one process."""


def serve() -> None:
    """Run `mlflow server` with the arguments of this process, and the server in it.

    `mlflow.server._exec_cmd`: MLflow starts uvicorn as a child, which first imports all of MLflow a second time.
    """
    import uvicorn  # first: by its presence, MLflow knows the process that serves, and checks host names in Flask, too
    from mlflow import cli, server

    def run(command: list[str], *, extra_env: dict[str, str], **_options: Any) -> None:
        os.environ.update(extra_env)
        uvicorn.main(command[command.index("uvicorn") + 1 :])

    vars(server)["_exec_cmd"] = run
    cli.server(sys.argv[1:])


def migrations() -> dict[str, Path]:
    """Return the folder with the migrations of each of MLflow's databases.

    `mlflow.store.db_migrations` and `mlflow.server.auth.db.migrations`: MLflow has no public list of revisions.
    """
    import mlflow

    package = Path(mlflow.__file__).parent
    return {"mlflow": package / "store" / "db_migrations", "mlflow_auth": package / "server/auth/db/migrations"}


class Unoffered:
    """Class of no artifact repository."""


def disable_direct_transfers() -> None:
    """Make clients download and upload artifacts through the server only, whatever they ask for.

    `MultipartUploadMixin` and the like in `mlflow.server.handlers`, by which MLflow decides what its server offers and
    which requests for presigned addresses it answers: MLflow 3.17 gives clients the address at which it reaches the
    object store itself, whatever is configured. A laptop cannot reach that. Without them, clients fall back.
    """
    from mlflow.server import handlers

    for name in ("MultipartUploadMixin", "MultipartDownloadMixin", "PresignedUploadMixin"):
        if not isinstance(vars(handlers)[name], type):
            raise HostError(f"MLflow decides on direct transfers by another name than `{name}`; install mlflow 3.17.")
        vars(handlers)[name] = Unoffered


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
