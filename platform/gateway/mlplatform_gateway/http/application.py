"""The gateway's application: FastAPI, whose routes declare their rights, and whose errors are one sentence of text."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute

from mlplatform.errors import PlatformError
from mlplatform_gateway.http.access import USERS, Right
from mlplatform_gateway.http.description import describe
from mlplatform_gateway.http.errors import handle_error, handle_http, handle_invalid
from mlplatform_gateway.jobs.store import JobStore

DESCRIPTION = "/platform/openapi.yaml"

# A variable of the environment would otherwise send bodies of requests, which may have secrets, to other servers.
_NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}


def application(
    routes: Iterable[BaseRoute],
    *,
    jobs: JobStore | None = None,
    services: Collection[str] = (),
    others: Collection[str] = (),
    **options: Any,
) -> FastAPI:
    """Return an application with routes.

    Args:
        routes: all routes, in the order of matching.
        jobs: store of the jobs, for rights to them; None if no route needs one.
        services: names of the services that have a token of their own.
        others: paths of other applications, which decide themselves who may use them.
        options: of FastAPI.

    Raises:
        LookupError: one of the routes declares no right.
    """
    found = [*_description(), *routes]  # the last one may be a mount of everything else
    for route in found:
        _check(route, others)
        if isinstance(route, APIRoute) and route.methods == {"GET"}:
            route.methods.add("HEAD")  # as for Starlette's routes; uvicorn leaves out the body of the answer
    handlers = {PlatformError: handle_error, RequestValidationError: handle_invalid, HTTPException: handle_http}
    options["exception_handlers"] = handlers | options.get("exception_handlers", {})
    app = FastAPI(routes=found, openapi_url=None, telemetry=_NO_TELEMETRY, **options)
    app.state.jobs, app.state.services = jobs, services
    app.openapi = cache(lambda: describe(found))  # type: ignore[method-assign]
    return app


class _Yaml(Response):
    """JSON, which is YAML, too."""

    media_type = "application/yaml"


def _check(route: Any, others: Collection[str]) -> None:
    """Raise LookupError unless a right is the first dependency: nothing is read for somebody who may not."""
    if isinstance(route, APIRoute | APIWebSocketRoute):
        first = [dependency.call for dependency in route.dependant.dependencies[:1]]
        if not any(isinstance(call, Right) for call in first):
            raise LookupError(f"{route.path} declares no right: begin with a dependency of http/access.py.")
    elif route.path not in others:
        raise LookupError(f"{route.path} is not a route of FastAPI, which declares who may use it.")


def _description() -> list[BaseRoute]:
    routes = APIRouter()

    content = {_Yaml.media_type: {"schema": {"type": "object"}}}

    @routes.get(DESCRIPTION, dependencies=[USERS], response_class=_Yaml, responses={200: {"content": content}})
    async def description(request: Request) -> Response:
        """This description."""
        return _Yaml(json.dumps(request.app.openapi()))

    return routes.routes
