"""Rights of the platform's role accounts at the MLflow server, by account and path, before MLflow's own check.

MLflow's permissions say what an account may do with one experiment or model, and every account has MANAGE by default,
so that people may delete what their jobs made. What the accounts of roles may not do at all is decided here.
"""

from __future__ import annotations

import base64
import re
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse

JOBS, PEOPLE, METRICS = "job", "person", "prometheus"
"""Accounts of the nodes, of the shared notebook, and of Prometheus."""

_METRICS_PATH = "/metrics"

_API = r"/(ajax-api|api)/[0-9.]+/mlflow/"

_ADMINISTRATION = re.compile(rf"({_API}(.+/)?(users|roles|permissions|webhooks)|/signup)(/|$)")
"""Paths for accounts and rights, a role account's own password included."""

_OWN_NAME = re.compile(rf"{_API}users/current$")
"""Path at which MLflow's page asks who it is."""

_DELETION = re.compile(rf"{_API}(experiments|registered-models|model-versions)/delete$")

_UNAUTHENTICATED = "You are not authenticated. Pass the name and the password of an account, or log in again."


def with_roles(app: Any) -> Any:
    """Return an ASGI application that refuses what the account of a request may not do because of its role.

    Not MLflow's `authorization_function`, which replaces its cache of right passwords: each request would compute a
    hash for 60 to 100 ms.
    """

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        answer: Any = None
        if scope["type"] in ("http", "websocket"):
            try:
                scope, account = _identified(scope)
            except ValueError:
                answer = PlainTextResponse(_UNAUTHENTICATED, 401, {"WWW-Authenticate": 'Basic realm="mlflow"'})
            else:
                method, path = scope.get("method", "GET"), scope["path"]
                if account is not None and not may(account, method, path):
                    sentence = f"The account {account!r} may not {method} {path}; use an account of your own for that."
                    answer = JSONResponse({"error_code": "PERMISSION_DENIED", "message": sentence}, 403)
        await (answer or app)(scope, receive, send)

    return checked


def may(account: str, method: str, path: str) -> bool:
    """Return whether the role of an account permits a request; MLflow decides on the rest."""
    if account == METRICS:
        return path == _METRICS_PATH and method in ("GET", "HEAD")
    if account not in (JOBS, PEOPLE):
        return True
    if _ADMINISTRATION.match(path):
        return method == "GET" and _OWN_NAME.match(path) is not None
    return account != JOBS or not _DELETION.match(path)


def account_of(scope: Any) -> str:
    """Return the name in a request that has passed `with_roles`; empty without a credential."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    return _decoded(given[0])[0] if given else ""


def _identified(scope: Any) -> tuple[Any, str | None]:
    """Return a request with one credential in the one spelling that every reader of MLflow understands alike.

    MLflow has several readers: of Flask, of its own for routes past Flask, and of another header for its AI gateway,
    which is off. A request with two credentials, or with one that they read differently, could pass as one account and
    be served as another.

    Returns:
        The request, and the name of its account; None without a credential.

    Raises:
        ValueError: there is more than one credential, or it is not a name and a password.
    """
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) > 1:
        raise ValueError("two credentials")
    headers = [item for item in scope["headers"] if item[0] not in (b"authorization", b"x-mlflow-authorization")]
    if not given:
        return {**scope, "headers": headers}, None
    name, credential = _decoded(given[0])
    headers.append((b"authorization", b"Basic " + base64.b64encode(credential)))
    return {**scope, "headers": headers}, name


def _decoded(header: bytes) -> tuple[str, bytes]:
    scheme, _, encoded = header.decode("latin-1").strip().partition(" ")
    credential = base64.b64decode(encoded.strip(), validate=True)
    name, colon, _ = credential.decode().partition(":")
    if scheme.lower() != "basic" or not colon or not name:
        raise ValueError("no name and password")
    return name, credential
