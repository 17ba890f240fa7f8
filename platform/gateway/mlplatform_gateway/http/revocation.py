"""End of requests that last longer than the credential with which they began: followed logs, live pages, WebSockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.types import ASGIApp, Receive, Scope, Send

from mlplatform.errors import PlatformError, UnreachableError

CHECK_SECONDS = 15.0
"""Interval of the checks."""

_POLICY_VIOLATION = 1008
_REASON_BYTES = 123


def until_refused(app: ASGIApp, check: Callable[[], Awaitable[object]], interval_s: float) -> ASGIApp:
    """Return an application that cancels requests whose credential is refused meanwhile.

    A WebSocket is closed with the reason. A response has no way to carry it; its connection is closed before its end,
    so that it does not look complete.

    Args:
        check: raises an error that says why the credential is refused; called every `interval_s` seconds.
    """

    async def refused() -> PlatformError:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await check()
            except UnreachableError:
                continue
            except PlatformError as error:
                return error

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        serving = asyncio.ensure_future(app(scope, receive, send))
        watching = asyncio.create_task(refused())
        try:
            await asyncio.wait((serving, watching), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                return serving.result()
        finally:
            serving.cancel()
            watching.cancel()
            await asyncio.gather(serving, watching, return_exceptions=True)
        if scope["type"] == "websocket":
            reason = str(watching.result()).encode()[:_REASON_BYTES].decode(errors="ignore")
            with suppress(OSError, RuntimeError):  # the client disconnected, or it was closed at the same moment
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": reason})

    return serve
