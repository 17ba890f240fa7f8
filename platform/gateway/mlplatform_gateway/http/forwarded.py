"""The client's address and scheme as the reverse proxy in front of the gateway reports them."""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

_CACHE_SECONDS = 5.0
"""Time for which the proxy's address is cached, also that it has none: whoever reaches the port can cause a look-up."""

_REPORTED = (b"x-forwarded-for", b"x-forwarded-proto")


class Forwarded:
    """ASGI middleware that takes `X-Forwarded-For` and `X-Forwarded-Proto` from one proxy, and from nobody else.

    The last address counts: the one that the proxy saw.

    Args:
        proxy: host name or address of the proxy; the name may be unknown while the proxy is not running.
    """

    def __init__(self, app: ASGIApp, proxy: str) -> None:
        self._app = app
        self._proxy = proxy
        self._addresses: set[str] = set()
        self._expires = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and await self._is_forwarded(scope):
            scope = _as_reported(scope)
        await self._app(scope, receive, send)

    async def _is_forwarded(self, scope: Scope) -> bool:
        """Return whether the proxy sends a request; its name is looked up only for those that claim to be forwarded."""
        if "x-forwarded-for" not in Headers(scope=scope) or not scope["client"]:
            return False
        if time.monotonic() > self._expires:
            try:
                found = await asyncio.get_running_loop().getaddrinfo(self._proxy, None)
            except OSError:
                found = []
            self._addresses = {str(entry[4][0]) for entry in found}
            self._expires = time.monotonic() + _CACHE_SECONDS
        return scope["client"][0] in self._addresses


def _as_reported(scope: Scope) -> Scope:
    headers = Headers(scope=scope)
    address = headers.getlist("x-forwarded-for")[-1].rpartition(",")[2].strip()
    secure = headers.get("x-forwarded-proto") == "https"
    schemes = {"http": "https", "websocket": "wss"}
    scheme = schemes[scope["type"]] if secure else scope["scheme"]
    kept = [(name, value) for name, value in scope["headers"] if name not in _REPORTED]
    return {**scope, "client": (address, 0), "scheme": scheme, "headers": kept}
