"""Clients as their requests tell about them: browsers, their origins, and what the reverse proxy reports of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

_PREFIXES = ("sec-fetch-", "access-control-")
_CACHE_SECONDS = 5.0
"""Time for which the proxy's address is cached, also that it has none: whoever reaches the port can cause a look-up."""

_REPORTED = (b"x-forwarded-for", b"x-forwarded-proto")


def is_browser(headers: Headers) -> bool:
    """Return whether a browser probably sent the request.

    The heuristics of `ray.dashboard.optional_utils.is_browser_request` (Ray 2.60): a user agent that begins with
    'Mozilla', `Origin`, `Referer`, or any Fetch Metadata or CORS header. Ray lists the last two by name; matching
    their prefixes also covers names that a later browser adds.
    """
    return (
        headers.get("user-agent", "").startswith("Mozilla")
        or "origin" in headers
        or "referer" in headers
        or any(name.startswith(_PREFIXES) for name in headers)
    )


def foreign_origin(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the first `Origin` (RFC 6454) that is not the request's own address, port included; None without one.

    Browsers send the header with everything that changes something, and with whatever a script of another origin reads.
    The names of headers are in lower case, as ASGI has them; the origin is cut to 200 characters for messages.
    """
    found: dict[bytes, list[str]] = {b"origin": [], b"host": []}
    for name, value in headers:
        if name in found:
            found[name].append(value.decode("latin-1"))
    host = found[b"host"][0] if len(found[b"host"]) == 1 else ""
    return next((origin[:200] for origin in found[b"origin"] if not _is_address(origin, host)), None)


def _is_address(origin: str, host: str) -> bool:
    """Return whether an origin is the address to which a request was sent; a TLS proxy may have changed the scheme."""
    scheme, _, origin_host = origin.lower().partition("://")
    port = {"http": ":80", "https": ":443"}.get(scheme)
    return port is not None and origin_host.removesuffix(port) == host.lower().removesuffix(port)


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
