"""Routes of the gateway: FastAPI's, with bodies of bounded size and errors of one sentence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast

from fastapi import APIRouter, FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.params import Body
from fastapi.routing import APIRoute, APIWebSocketRoute
from fastapi.utils import create_model_field
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from mlplatform.errors import PlatformError
from mlplatform.gateway.errors import RequestError
from mlplatform.gateway.http import request_body
from mlplatform.gateway.http.access import Right, User
from mlplatform.gateway.http.description import describe
from mlplatform.gateway.http.errors import handle_error, handle_invalid, handle_missing
from mlplatform.gateway.jobs.store import JobStore
from mlplatform.gateway.jobs.submission import invalid_field

Model = TypeVar("Model", bound=BaseModel)

_BODY_BYTES = 16 << 10


class JsonBody(Generic[Model]):
    """Dependency that returns the body of a request, of which no more than the limit is read.

    FastAPI itself would read any amount for any time, and only with a header that clients do not all send.

    Args:
        model: fields of the body.
        max_bytes: size limit.
        instead: what to do instead of sending more; ends the error message.
        optional: an empty body is one without fields.
    """

    def __init__(
        self,
        model: type[Model],
        max_bytes: int = _BODY_BYTES,
        instead: str = "send the fields of the description alone",
        optional: bool = False,
    ) -> None:
        self.model = model
        self.optional = optional
        self._max_bytes = max_bytes
        self._instead = instead

    async def __call__(self, request: Request) -> Model:
        """Return the body.

        Raises:
            RequestError: it is invalid or too large, or did not arrive.
        """
        body = await request_body.whole(request.receive, self._max_bytes, self._instead)
        return self.parse(body or b"{}" if self.optional else body)

    def parse(self, body: bytes) -> Model:
        """Return the fields of a body.

        Raises:
            RequestError: it is invalid.
        """
        try:
            return self.model.model_validate_json(body)
        except ValidationError as error:
            raise RequestError(invalid_field(error)) from error


class ApiRoute(APIRoute):
    """A route that declares who may use it; HEAD is part of GET.

    Raises:
        LookupError: it declares no right.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.called = list(_called(self.dependant))
        _check_right(f"{'/'.join(sorted(self.methods or ()))} {path}", self.called)
        for body in self.called:
            if isinstance(body, JsonBody):
                default = None if body.optional else ...
                field = Body(default, annotation=body.model)
                self.body_field = create_model_field(f"body_{self.unique_id}", body.model, field_info=field)

    def matches(self, scope: Scope) -> Any:
        """Match a scope as Starlette does, HEAD as GET."""
        return super().matches(_as_get(scope))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, HEAD as GET: uvicorn leaves out the body of the answer."""
        await super().handle(_as_get(scope), receive, send)


class Gateway(FastAPI):
    """The gateway's application.

    Args:
        routes: all routes, in the order of matching.
        jobs: store of the jobs, for rights to them; None if no route needs one.
        services: names of the services that have a token of their own.
        others: paths of other applications, which decide themselves who may use them.
        options: of FastAPI.

    Raises:
        LookupError: one of the routes declares no right.
    """

    def __init__(
        self,
        routes: Iterable[BaseRoute],
        jobs: JobStore | None = None,
        services: Collection[str] = (),
        others: Collection[str] = (),
        **options: Any,
    ) -> None:
        handlers = {
            PlatformError: handle_error,
            RequestValidationError: handle_invalid,
            HTTPException: handle_missing,
        }
        options["exception_handlers"] = {**handlers, **options.get("exception_handlers", {})}
        super().__init__(routes=[*_description().routes, *routes], openapi_url=None, **options)
        self.state.jobs, self.state.services = jobs, services
        for route in cast(Sequence[Any], self.routes):
            if isinstance(route, APIWebSocketRoute):
                _check_right(f"WEBSOCKET {route.path}", list(_called(route.dependant)))
            elif not isinstance(route, ApiRoute) and route.path not in others:
                raise LookupError(f"{route.path} is not a route of `router()`, which declares who may use it.")

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI description, generated at its first use."""
        if self.openapi_schema is None:
            self.openapi_schema = describe([route for route in self.routes if isinstance(route, ApiRoute)])
        return self.openapi_schema


def router(*, pages: bool = False) -> APIRouter:
    """Return a router for some of the gateway's routes.

    Args:
        pages: its routes are for browsers and Ray's dashboard, and are left out of the description.
    """
    return APIRouter(route_class=ApiRoute, include_in_schema=not pages)


def _description() -> APIRouter:
    described = router()

    @described.get("/platform/openapi.json")
    async def description(request: Request, _: User) -> JSONResponse:
        """This description."""
        return JSONResponse(request.app.openapi())

    return described


def _called(dependant: Dependant) -> Iterator[Any]:
    """Yield all dependencies of a route, in any depth."""
    for dependency in dependant.dependencies:
        yield dependency.call
        yield from _called(dependency)


def _check_right(route: str, called: Sequence[Any]) -> None:
    """Raise LookupError unless a right is the first dependency: nothing is read for somebody who may not."""
    if not called or not isinstance(called[0], Right):
        raise LookupError(f"{route} declares no right: begin with a dependency of http/access.py.")


def _as_get(scope: Scope) -> Scope:
    return {**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope
