"""Routes of the gateway without its check of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from mlplatform.gateway.http.auth import identified
from mlplatform.gateway.people.principal import SHARED


class _AsShared:
    """Middleware after which every request is one with the shared token."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(identified(scope, SHARED), receive, send)


def without_log_in(routes: Sequence[BaseRoute]) -> Starlette:
    """Return an application with routes, for which every request is one with the shared token."""
    return Starlette(routes=routes, middleware=[Middleware(_AsShared)])
