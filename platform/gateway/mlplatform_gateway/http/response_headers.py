"""Headers of every response: the gateway's version, and what browsers may do with its pages."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OWN_PAGES = (
    "default-src 'none'; base-uri 'none'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "img-src data:; script-src 'self'; style-src 'self'"
)
"""Policy of the gateway's own pages."""

# Its style library adds style elements; Grafana's panels are frames, at an address that depends on the stack.
RAY_PAGES = (
    "default-src 'none'; base-uri 'none'; connect-src 'self'; font-src 'self' data:; form-action 'none'; "
    "frame-ancestors 'none'; frame-src http: https:; img-src 'self' data:; script-src 'self'; "
    "style-src 'self' 'unsafe-inline'"
)
"""Policy of Ray's dashboard (the bundle of 2.60)."""

_SECURITY = {
    "Referrer-Policy": "same-origin",  # without any, browsers send log-in and log-out with the origin `null`
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class ResponseHeaders:
    """ASGI middleware that sets headers of every response; a content security policy that it already has is kept.

    Args:
        always: names and values that replace those of the response.
        policy: the content security policy of a response that has none.
    """

    def __init__(self, app: ASGIApp, always: dict[str, str] | None = None, policy: str = OWN_PAGES) -> None:
        self._app = app
        self._always = {**_SECURITY, **(always or {})}
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._always)
                headers.setdefault("Content-Security-Policy", self._policy)
            await send(message)

        await self._app(scope, receive, send_with_headers)
