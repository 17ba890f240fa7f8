"""Private names of the MLflow server, as seen in mlflow 3.17.2, each with the reason why no public name will do.

MLflow's server has no public hooks for authentication. Every name is read before it is replaced, so that a name that a
later version renames aborts the server's start instead of leaving a gap open. `tests/embedded/compat` asserts them all.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mlplatform.compat import (
    mlflow_artifacts,
    mlflow_audit,
    mlflow_owners,
    mlflow_retention,
    mlflow_stores,
    mlflow_tokens,
)
from mlplatform.compat.mlflow_stores import Signing
from mlplatform.compat.mlflow_tokens import KnownCallers, Tokens
from mlplatform.errors import HostError

_OWN_SCRIPT = '<script defer="defer" src="static-files/'
"""Begin of the tag by which MLflow's index page loads its code."""

_SCRIPT_CACHE_SECONDS = 28 * 24 * 3600
"""As for MLflow's own scripts, whose names change with their contents too."""


_ROUTES = "/api/2.0/mlflow/mlplatform"
"""Path of our own routes, beside MLflow's, so that clients reach them in the same way."""


def authenticated_app(metrics_user: str, audit_user: str, retention_user: str, signing: Signing, tokens: Tokens) -> Any:
    """Return MLflow's application with its basic authentication and its gaps closed.

    `mlflow.server.auth.create_app` registers MLflow's own checks. `auth.BEFORE_REQUEST_VALIDATORS` decides per path
    and method: MLflow rejects every path without an entry, and has none for `/metrics`.

    Args:
        metrics_user: account that may read `/metrics`; MLflow lets its administrator read everything.
        audit_user: account that may read the recorded changes of registered models.
        retention_user: account that may remove what was deleted some days ago.
        signing: how the server signs the digests of registered models.
        tokens: tokens of people and of their jobs.
    """
    from mlflow.server import app, auth
    from mlflow.server.auth.routes import AJAX_UPDATE_USER_PASSWORD, UPDATE_USER_PASSWORD

    disable_direct_transfers()
    # Before MLflow adds its own check, so that this one comes first.
    app.before_request(_reject_other_schemes)

    def is_metrics_user() -> bool:
        return getattr(auth.authenticate_request(), "username", None) == metrics_user

    auth.BEFORE_REQUEST_VALIDATORS["/metrics", "GET"] = is_metrics_user
    for path in (UPDATE_USER_PASSWORD, AJAX_UPDATE_USER_PASSWORD):
        auth.BEFORE_REQUEST_VALIDATORS[path, "PATCH"] = _refuse_password
    check_passwords()
    mlflow_tokens.accept(tokens)
    mlflow_stores.guard(signing)
    mlflow_owners.guard_runs()
    _add_routes(audit_user, retention_user, signing)
    mlflow_artifacts.keep_names_in_server()
    return mlflow_artifacts.ExactNames(KnownCallers(auth.create_app(), tokens))


def _refuse_password() -> bool:
    """Refuse with a sentence; MLflow asks no validator about its administrator."""
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

    raise MlflowException(
        "Only the administrator may change a password, because accounts are shared; ask for it.", PERMISSION_DENIED
    )


def check_passwords() -> None:
    """Let the check of an unknown user take as long as that of a wrong password.

    `mlflow.server.auth.store.authenticate_user` computes no hash for an unknown user, so that names could be guessed.
    """
    from mlflow.server.auth import store
    from werkzeug.security import check_password_hash, generate_password_hash

    original, nobody = store.authenticate_user, generate_password_hash(secrets.token_urlsafe())

    def authenticate_user(username: str, password: str, **options: Any) -> bool:
        if not store.has_user(username):
            check_password_hash(nobody, password)
            return False
        return bool(original(username, password, **options))

    store.authenticate_user = authenticate_user  # type: ignore[method-assign]


def _add_routes(audit_user: str, retention_user: str, signing: Signing) -> None:
    """Add the routes that verify and sign digests, read the recorded changes, and remove what was deleted."""
    from flask import request
    from mlflow.server import app, auth
    from mlflow.server.handlers import catch_mlflow_exception

    def digest() -> Any:
        return mlflow_stores.digest_of(request.args.get("name", ""), request.args.get("version", ""), signing)

    def sign() -> Any:
        values = request.get_json()
        return mlflow_stores.sign(str(values.get("name", "")), str(values.get("version", "")), signing)

    def audit() -> Any:
        limit = min(max(request.args.get("limit", 100, type=int), 1), 1000)
        return {"changes": mlflow_audit.changes(limit)}

    def only(user: str) -> Callable[[], bool]:
        return lambda: getattr(auth.authenticate_request(), "username", None) == user

    routes: tuple[tuple[list[str], Callable[[], Any], Callable[[], bool]], ...] = (
        (["GET"], digest, lambda: True),
        (["POST"], sign, lambda: False),
        (["GET"], audit, only(audit_user)),
        (["GET", "POST"], _expired, only(retention_user)),
    )
    for methods, view, validator in routes:
        name = view.__name__.lstrip("_")
        path = f"{_ROUTES}/{name}"
        caught = catch_mlflow_exception(view)  # type: ignore[no-untyped-call]
        app.add_url_rule(path, f"mlplatform_{name}", caught, methods=methods)
        for method in methods:
            auth.BEFORE_REQUEST_VALIDATORS[path, method] = validator


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


def run_on_index_page(script: str) -> None:
    """Let MLflow's index page run a script before its own; called once, before the application is made.

    `mlflow.server.app` with its endpoint `serve`, and the page in its static folder: MLflow has no setting for what
    its page shows first. The script is a file of its own, below `/static-files`, so that the page needs no exception
    from a Content-Security-Policy that a reverse proxy may add.

    Raises:
        HostError: MLflow has another index page than expected.
    """
    from flask import send_file
    from mlflow.server import app

    def answer(text: str, mimetype: str, max_age: int | None = None) -> Callable[[], Any]:
        content = text.encode()
        etag = hashlib.sha256(content).hexdigest()[:32]
        # Answers a conditional request with 304; without `max_age`, browsers ask each time, as for MLflow's page.
        return lambda: send_file(io.BytesIO(content), mimetype, etag=etag, max_age=max_age)

    path = f"static-files/mlplatform.{hashlib.sha256(script.encode()).hexdigest()[:8]}.js"
    page = with_script(Path(str(app.static_folder), "index.html").read_text(), path)
    if "serve" not in app.view_functions:
        raise HostError("MLflow serves its index page by another name than `serve`; install mlflow 3.17.")
    app.view_functions["serve"] = answer(page, "text/html")
    app.add_url_rule(f"/{path}", "mlplatform_script", answer(script, "text/javascript", _SCRIPT_CACHE_SECONDS))


def with_script(page: str, path: str) -> str:
    """Return MLflow's index page with another script before its own; deferred, as scripts run in the page's order.

    Raises:
        HostError: the page loads its code in another way.
    """
    if page.count(_OWN_SCRIPT) != 1:
        raise HostError(f"MLflow's index page has no single `{_OWN_SCRIPT}`; install mlflow 3.17.")
    return page.replace(_OWN_SCRIPT, f'<script defer="defer" src="{path}"></script>{_OWN_SCRIPT}')


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
    which requests for presigned addresses it answers: MLflow 3.17 gives clients the object store's address, here
    `http://minio:9000`, whatever is configured. A laptop cannot reach that. Without them, clients fall back.
    """
    from mlflow.server import handlers

    for name in ("MultipartUploadMixin", "MultipartDownloadMixin", "PresignedUploadMixin"):
        if not isinstance(vars(handlers)[name], type):
            raise HostError(f"MLflow decides on direct transfers by another name than `{name}`; install mlflow 3.17.")
        vars(handlers)[name] = Unoffered


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
