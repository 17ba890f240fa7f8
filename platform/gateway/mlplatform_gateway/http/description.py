"""The OpenAPI description of the gateway: FastAPI's, with the errors that many routes have in common."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

from fastapi.openapi.utils import get_openapi
from fastapi.params import Body
from fastapi.routing import APIRoute
from fastapi.utils import create_model_field
from starlette.routing import BaseRoute

from mlplatform_gateway.http.access import OPEN
from mlplatform_gateway.http.request_body import JsonBody

_ABOUT = """\
Ray's Jobs API, compatible with Ray 2.60, with jobs, packages and logs that outlive Ray, and the platform's own paths.
Errors are one sentence of plain text: the problem and its solution.

Requests have the shared token, which may do everything, a person's, or that of an attempt of a job, which submits jobs
for its owner, and reads and stops the owner's. A person who is not an administrator gets 403 with the reason for what
only others may do, and sees of other teams' jobs the owner, the requested resources, the state and the first line of
the reason. Only the owner of a job sees the values of its variables; administrators are the owners of the shared
token's jobs.

Two facts that this format cannot express: `GET /api/jobs/{job_id}/logs/tail` is a WebSocket that sends the log as text
from its beginning and closes when the job has ended; and any path with empty, `.` or `..` parts or with control
characters is answered 400.

The pages for people are left out: `/platform/`, which reads these routes only, `/platform/login`, `/platform/logout`,
and `/platform/wheel/` with the package for `pip`.
"""

_TEXTS = {
    400: "The request is invalid; the message names the part.",
    401: "The token is missing, or that of Ray's nodes.",
    403: "The token is wrong, expired or revoked, or its person may not do this; the message says which.",
    404: "It does not exist; the message names it.",
    405: "Browsers are rejected.",
    408: "The body stopped arriving.",
    409: "Its present state does not allow this; the message names the state.",
    410: "It was deleted.",
    413: "The body is too large.",
    422: "No node can ever run it; the message names the shape that fits.",
    429: "The owner or the team has as many waiting jobs as allowed.",
    500: "The object store rejects the gateway's account or key.",
    503: "The database, the storage or the Ray head is unavailable; nothing has changed.",
    507: "A disk has too little room for new jobs; the message names it.",
}

_SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "The token of Ray's clients."},
    "metrics": {"type": "http", "scheme": "bearer", "description": "The password of Prometheus."},
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the description of a route's errors; those that all routes of its kind have are added to it."""
    return {status: _error(status) for status in statuses}


def raw_body(text: str, required: bool = True) -> dict[str, Any]:
    """Return the description of a body of bytes."""
    content: dict[str, Any] = {"application/octet-stream": {}}
    return {"requestBody": {"required": required, "description": text, "content": content}}


def describe(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """Return the description of those routes that are not left out of it."""
    shown = [_shown(route) for route in routes if isinstance(route, APIRoute) and route.include_in_schema]
    described = get_openapi(title="mlplatform gateway", version="1", description=_ABOUT, routes=shown)
    described["security"] = [{"token": []}]
    described["components"]["securitySchemes"] = _SCHEMES
    # Of FastAPI's own error of validation, which is answered 400 here.
    for unused in ("HTTPValidationError", "ValidationError"):
        described["components"]["schemas"].pop(unused, None)
    for route in shown:
        is_open = route.dependant.dependencies[0].call is OPEN.dependency
        for method in route.methods or ():
            _complete(described["paths"][route.path_format][method.lower()], method, is_open)
    return described


def _shown(route: APIRoute) -> APIRoute:
    """Return a copy of a route without HEAD, and with the body that one of its dependencies reads."""
    shown = copy(route)
    shown.methods = (route.methods or set()) - {"HEAD"}
    for dependency in route.dependant.dependencies:
        if isinstance(body := dependency.call, JsonBody):
            field = Body(default=... if body.empty is None else None, annotation=body.model)
            shown.body_field = create_model_field(f"body_{route.unique_id}", body.model, field_info=field)
    return shown


def _complete(operation: dict[str, Any], method: str, is_open: bool) -> None:
    summary, _, description = operation.pop("description").partition("\n\n")
    operation["summary"] = summary
    if description:
        operation["description"] = description
    statuses = {503} | (set() if is_open else {401, 403}) | ({405} if method != "GET" else set())
    if "parameters" in operation:
        statuses.add(400)
    if "requestBody" in operation:
        statuses |= {400, 408, 413}
    if is_open:
        operation.setdefault("security", [])
    responses = {
        status: response
        for status, response in operation["responses"].items()
        if "HTTPValidationError" not in str(response)
    }
    for status in sorted(statuses):
        responses.setdefault(str(status), _error(status))
    operation["responses"] = responses


def _error(status: int) -> dict[str, Any]:
    return {"description": _TEXTS[status], "content": {"text/plain": {}}}
