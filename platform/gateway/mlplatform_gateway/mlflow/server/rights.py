"""Rights of the platform's role accounts at the MLflow server, by account, method and path.

MLflow's permissions say what an account may do with one experiment or model, and every account has MANAGE by default,
so that people may delete what their jobs made. What the accounts of roles may not do at all is decided here, in the
function with which MLflow authenticates each request (`authorization_function` in `docker/mlflow/basic_auth.ini`).
"""

from __future__ import annotations

import re
from typing import Any

JOBS, PEOPLE, METRICS = "job", "person", "prometheus"
"""Accounts of the nodes, of the shared notebook, and of Prometheus."""

_API = r"/(ajax-api|api)/[0-9.]+/mlflow/"

_ADMINISTRATION = re.compile(rf"({_API}(.+/)?(users|roles|permissions|webhooks)|/signup)(/|$)")
"""Paths for accounts and rights, a role account's own password included."""

_OWN_NAME = re.compile(rf"{_API}users/current$")
"""Path at which MLflow's page asks who it is."""

_DELETION = re.compile(rf"{_API}(experiments|registered-models|model-versions)/delete$")


def authenticate() -> Any:
    """Return the account of Flask's current request, or the response that refuses it.

    MLflow calls this for its routes past Flask, too, so all of them read credentials alike.
    """
    from flask import Response, jsonify, request
    from mlflow.server.auth import authenticate_request_basic_auth

    if request.authorization and request.authorization.type != "basic":
        sentence = "You are not authenticated. Pass the name and the password of an account, or log in again."
        return Response(sentence, 401, {"WWW-Authenticate": 'Basic realm="mlflow"'})
    account = authenticate_request_basic_auth()
    if isinstance(account, Response) or may(str(account.username), request.method, request.path):
        return account
    action = f"{request.method} {request.path}"
    sentence = f"The account {account.username!r} may not {action}; use an account of your own for that."
    refusal = jsonify({"error_code": "PERMISSION_DENIED", "message": sentence})
    refusal.status_code = 403
    return refusal


def may(account: str, method: str, path: str) -> bool:
    """Return whether the role of an account permits a request; MLflow decides on the rest."""
    if account == METRICS:
        return path == "/metrics" and method in ("GET", "HEAD")
    if account not in (JOBS, PEOPLE):
        return True
    if _ADMINISTRATION.match(path):
        return method == "GET" and _OWN_NAME.match(path) is not None
    return account != JOBS or not _DELETION.match(path)
