"""Table of who may use each route of the gateway, and its enforcement.

A route that is missing in the table is an error when the gateway starts, so that no route is open by oversight. Routes
of one job check the right that the table names themselves, because they have the job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any

from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from mlplatform.contract import MLFLOW_CHANGES, MODEL_DIGESTS
from mlplatform.gateway.errors import ForbiddenError
from mlplatform.gateway.http.auth import principal_of
from mlplatform.gateway.jobs.schema import JobRow
from mlplatform.gateway.people.principal import Principal
from mlplatform.gateway.people.rights import Verb, may, refusal

LOG_SHIPPER, MLFLOW = "log shipper", "MLflow server"
"""Names of the services that have tokens of their own here."""


class Access(StrEnum):
    """The ones who may use a route."""

    OPEN = "open"
    """Everybody, without a token or with one that the route itself checks."""

    USERS = "people and jobs"
    """Everybody who has logged in, with the shared token or a person's, and attempts of their jobs."""

    PEOPLE = "people"
    ATTEMPTS = "jobs"

    ADMINISTRATORS = "administrators"
    LOG_SHIPPER = "log shipper"
    MLFLOW = "MLflow server"
    HEAD = "head"
    """Requests for Ray's head, which `allowed_requests` checks."""


ACCESS: Mapping[tuple[str, str], Access | Verb] = {
    ("GET", "/platform/health"): Access.OPEN,
    ("GET", "/platform/openapi.yaml"): Access.USERS,
    # Jobs: the verb is the right that somebody needs for the job.
    ("GET", "/platform/jobs/{job_id}"): Verb.SEE,
    ("GET", "/platform/jobs/{job_id}/log"): Verb.LOGS,
    ("POST", "/platform/jobs/{job_id}/resume"): Verb.RESUME,
    ("GET", "/platform/jobs/{job_id}/run"): Verb.METADATA,
    ("GET", "/platform/jobs/{job_id}/model"): Verb.METADATA,
    ("GET", "/api/jobs/"): Verb.SEE,
    ("POST", "/api/jobs/"): Verb.SUBMIT,
    ("GET", "/api/jobs/{job_id}"): Verb.SEE,
    ("DELETE", "/api/jobs/{job_id}"): Verb.DELETE,
    ("POST", "/api/jobs/{job_id}/stop"): Verb.STOP,
    ("GET", "/api/jobs/{job_id}/logs"): Verb.LOGS,
    ("WEBSOCKET", "/api/jobs/{job_id}/logs/tail"): Verb.LOGS,
    ("GET", "/api/v0/logs/file"): Verb.LOGS,
    ("GET", "/api/v0/logs/stream"): Verb.LOGS,
    # Everybody may know whether a package exists; `packages.py` checks who may upload one.
    ("GET", "/api/packages/{protocol}/{package_name:path}"): Access.USERS,
    ("PUT", "/api/packages/{protocol}/{package_name:path}"): Access.USERS,
    # The cluster, which is everybody's.
    ("GET", "/api/version"): Access.USERS,
    ("POST", "/platform/capacity"): Access.USERS,
    ("GET", "/platform/utilisation"): Verb.SEE,
    ("GET", "/platform/storage-credentials"): Access.PEOPLE,
    ("POST", "/platform/storage-credentials"): Access.PEOPLE,
    # Everybody sees owner, shape, state and reason of every job.
    ("GET", "/platform/queue"): Access.USERS,
    ("GET", "/platform/usage"): Access.USERS,
    # Its operation.
    ("GET", "/platform/prune"): Access.ADMINISTRATORS,
    ("POST", "/platform/prune"): Access.ADMINISTRATORS,
    ("GET", "/platform/audit"): Access.ADMINISTRATORS,
    ("GET", "/platform/logs"): Access.LOG_SHIPPER,
    ("PUT", "/platform/logs/{node}/{file}"): Access.LOG_SHIPPER,
    ("POST", "/platform/logs/{node}"): Access.LOG_SHIPPER,
    ("POST", MLFLOW_CHANGES): Access.MLFLOW,
    ("GET", MODEL_DIGESTS): Access.USERS,
    # People.
    ("GET", "/platform/people"): Access.PEOPLE,
    ("POST", "/platform/people"): Access.ADMINISTRATORS,
    ("DELETE", "/platform/people/{name}"): Access.ADMINISTRATORS,
    ("GET", "/platform/teams"): Access.PEOPLE,
    ("POST", "/platform/teams"): Access.ADMINISTRATORS,
    ("PATCH", "/platform/teams/{name}"): Access.ADMINISTRATORS,
    ("DELETE", "/platform/teams/{name}"): Access.ADMINISTRATORS,
    ("POST", "/platform/tokens"): Access.OPEN,
    ("GET", "/platform/tokens"): Access.PEOPLE,
    ("GET", "/platform/webhook"): Access.PEOPLE,
    ("PUT", "/platform/webhook"): Access.PEOPLE,
    ("DELETE", "/platform/tokens/{token_id}"): Access.PEOPLE,
    ("GET", "/platform/secrets"): Access.PEOPLE,
    ("PUT", "/platform/secrets/{name}"): Access.PEOPLE,
    ("DELETE", "/platform/secrets/{name}"): Access.PEOPLE,
    # What only attempts have.
    ("GET", "/platform/attempt/secrets"): Access.ATTEMPTS,
    ("PUT", "/platform/attempt/runs/{run_id}"): Access.ATTEMPTS,
    # Browsers.
    ("POST", "/api/authenticate"): Access.OPEN,
    ("POST", "/platform/logout"): Access.OPEN,
    ("GET", "/platform/login"): Access.OPEN,
    ("POST", "/platform/login"): Access.OPEN,
    ("GET", "/platform/"): Verb.SEE,
    ("GET", "/platform/live"): Verb.SEE,
    ("MOUNT", "/platform/static"): Access.OPEN,
    # The package is public source, and `pip` sends no token.
    ("GET", "/platform/wheel/"): Access.OPEN,
    ("GET", "/platform/wheel/{file}"): Access.OPEN,
    # These have a token of their own, or pass on only what is public.
    ("GET", "/platform/metrics"): Access.OPEN,
    ("GET", "/platform/prometheus/api/v1/query"): Access.OPEN,
    ("GET", "/platform/grafana/api/health"): Access.OPEN,
    ("MOUNT", ""): Access.HEAD,
}


def guarded(routes: Iterable[BaseRoute], services: Collection[str] = ()) -> list[BaseRoute]:
    """Return the routes with a check of who uses them.

    Args:
        routes: all routes of the gateway.
        services: those that have a token; for their routes, it alone is accepted, and not the shared one.

    Raises:
        LookupError: `ACCESS` lacks one of them.
    """
    found = list(routes)
    for route in found:
        methods = {method: _decision(method, route) for method in methods_of(route)}
        if isinstance(route, Route | WebSocketRoute):
            route.app = _Guard(route.app, methods, services)
    return found


def methods_of(route: BaseRoute) -> set[str]:
    """Return the methods of a route as `ACCESS` names them; HEAD is part of GET."""
    if isinstance(route, Route):
        return (route.methods or set()) - {"HEAD"}
    return {"MOUNT"} if isinstance(route, Mount) else {"WEBSOCKET"}


def require(scope: Scope, verb: Verb, job: JobRow) -> None:
    """Check a right to a job.

    Raises:
        ForbiddenError: the sender of the request lacks it.
    """
    principal = principal_of(scope)
    if not may(principal, verb, job.person, job.team):
        raise ForbiddenError(refusal(principal, verb, job.id, job.person, job.team))


def _decision(method: str, route: Any) -> Access | Verb:
    if (method, route.path) not in ACCESS:
        raise LookupError(f"{method} {route.path} is missing in the table of http/access.py: add who may use it.")
    return ACCESS[method, route.path]


class _Guard:
    """ASGI application that checks who sends a request for a route."""

    def __init__(self, app: ASGIApp, methods: Mapping[str, Access | Verb], services: Collection[str]) -> None:
        self._app = app
        self._methods = methods
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "WEBSOCKET" if scope["type"] == "websocket" else scope["method"]
        needed = self._methods["GET" if method == "HEAD" else method]
        refused = self._refusal(principal_of(scope), needed, f"{method} {scope['path'][:200]!r}")
        await (refused or self._app)(scope, receive, send)

    def _refusal(self, principal: Principal, needed: Access | Verb, shown: str) -> Response | None:
        if needed is Access.OPEN:
            return None
        is_person = principal.administrator or bool(principal.person and not principal.attempt)
        if needed.value in self._services:
            allowed, who = principal.service == needed.value, f"the {needed.value}, with its own token,"
        elif needed in (Access.LOG_SHIPPER, Access.MLFLOW, Access.ADMINISTRATORS):
            allowed, who = principal.administrator, "administrators"
        elif needed is Access.PEOPLE:
            allowed, who = is_person, "people"
        elif needed is Access.ATTEMPTS:
            allowed, who = principal.attempt is not None, "jobs, with the tokens of their attempts,"
        else:
            allowed, who = is_person or principal.attempt is not None, "people and jobs"
        return None if allowed else PlainTextResponse(f"Only {who} may use {shown} of the gateway.", 403)
