"""Routes of the gateway without its check of tokens."""

from fastapi import APIRouter, FastAPI
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from mlplatform_gateway.http.application import application
from mlplatform_gateway.http.auth import identified
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.people.rights import SHARED


class _AsShared:
    """Middleware after which every request is one with the shared token."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(identified(scope, SHARED), receive, send)


def without_log_in(*routers: APIRouter, jobs: JobStore | None = None) -> FastAPI:
    """Return an application with routes, for which every request is one with the shared token."""
    routes = [route for router in routers for route in router.routes]
    return application(routes, jobs=jobs, middleware=[Middleware(_AsShared)])
