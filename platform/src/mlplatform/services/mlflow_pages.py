"""Security headers on every answer of the MLflow server, and 429 after too many failed log-ins.

An ASGI application around MLflow's, because MLflow serves some of its routes by Flask and others past it.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

FAILURES = 10
"""Failed log-ins of one address within a minute, after which further ones get 429."""

_MINUTE = 60.0

_MOST_ADDRESSES = 10_000

_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"SAMEORIGIN",
    b"referrer-policy": b"same-origin",
    b"content-security-policy": b"frame-ancestors 'self'; object-src 'none'; base-uri 'self'",
}

_TOO_MANY = b"Too many failed log-ins from this address; correct the account and try again in a minute."


class GuardedPages:
    """An ASGI application around MLflow's.

    Each process of the server counts for itself. Correct credentials are never rejected, as containers share
    addresses: the count decides only what a failed log-in is answered.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._failed: dict[str, deque[float]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = (scope.get("client") or ("",))[0]
        logs_in = any(name == b"authorization" for name, _ in scope["headers"])
        rejected = False

        async def answer(message: Any) -> None:
            nonlocal rejected
            if message["type"] == "http.response.start":
                if message["status"] == 401 and logs_in and self._too_many(client):
                    rejected = True
                    headers = [(b"content-type", b"text/plain"), (b"retry-after", b"60")]
                    message = {**message, "status": 429, "headers": headers}
                there = {name.lower() for name, _ in message["headers"]}
                added = [(name, value) for name, value in _HEADERS.items() if name not in there]
                message = {**message, "headers": [*message["headers"], *added]}
            elif rejected:
                message = {**message, "body": b"" if message.get("more_body") else _TOO_MANY}
            await send(message)

        await self._app(scope, receive, answer)

    def _too_many(self, client: str) -> bool:
        """Count a failure of an address; return True if it had too many within the last minute."""
        now = time.monotonic()
        if len(self._failed) >= _MOST_ADDRESSES:
            self._failed = {each: times for each, times in self._failed.items() if now - times[-1] < _MINUTE}
        times = self._failed.setdefault(client, deque(maxlen=FAILURES))
        full = len(times) == FAILURES and now - times[0] < _MINUTE
        if not full:
            times.append(now)
        return full
