"""Reverse proxy: to the Ray head for every request that is not about the gateway's jobs, and to JupyterLab of jobs."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable

import anyio
import httpx
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from mlplatform.errors import UnreachableError
from mlplatform_gateway.errors import ClientGoneError, StalledRequestError
from mlplatform_gateway.http.auth import principal_of
from mlplatform_gateway.http.errors import error_response
from mlplatform_gateway.http.request_body import SILENT_SECONDS, incoming
from mlplatform_gateway.people.rights import NOBODY

_TIMEOUT = httpx.Timeout(60.0, connect=5.0, pool=None)

_log = logging.getLogger(__name__)

# Ray's responses to these last as long as something is printed or profiled.
_LONG_RESPONSES = ("/api/v0/logs/stream", "/worker/", "/task/", "/memory_profile")

_HOP_BY_HOP = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
    *("te", "trailer", "trailers", "transfer-encoding", "upgrade"),
}

# uvicorn has answered `Expect` already, and httpx sets the head's name. Cookies know no ports: a browser sends those of
# all services of this host, and jobs run on the head.
_NOT_SENT = _HOP_BY_HOP | {"host", "expect", "x-forwarded-for", "cookie", "authorization", "x-ray-authorization"}

# uvicorn sets its own.
_NOT_RETURNED = _HOP_BY_HOP | {"date", "server"}

_RawHeaders = list[tuple[bytes, bytes]]

_Token = Callable[[], str] | None


class ReverseProxy:
    """ASGI application that forwards HTTP requests to a server.

    Bodies are streamed both ways unchanged, compressed or not; redirects and the server's cookies are left to the
    client, whose own cookies and token the server does not get: requests that were authenticated have the server's
    token instead. While the server is unavailable, requests are answered 503 with the reason.

    Args:
        server: its address, `http://host:port`.
        token: returns its token; None if it needs none.
        timeout: of a connection to it, and between two parts of a response; streams of logs and profiles have none of
            the latter.
        silent_seconds: timeout between two parts of a request's body.
        name: name of the server in messages.
        path: Unix socket that leads to it, instead of its address.
    """

    def __init__(
        self,
        server: str,
        token: _Token = None,
        timeout: httpx.Timeout = _TIMEOUT,
        silent_seconds: float = SILENT_SECONDS,
        name: str = "Ray's head",
        path: str | None = None,
    ) -> None:
        self._server = server.rstrip("/")
        self._name = name if path else f"{name} at {self._server}"
        self._token = token
        self._timeout = timeout
        self._silent = silent_seconds
        # A transport, not a client: a client would add headers, keep cookies and use the environment's proxies.
        self._http = httpx.AsyncHTTPTransport(
            uds=path, limits=httpx.Limits(max_keepalive_connections=20, keepalive_expiry=5.0)
        )

    async def close(self) -> None:
        """Close the connections to the server; call it after the last request."""
        await self._http.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request and its response, and cancel both when the client disconnects."""
        headers = Headers(scope=scope)
        has_body = "content-length" in headers or "transfer-encoding" in headers
        body_read = anyio.Event()

        async def body() -> AsyncIterator[bytes]:
            try:
                async for part in incoming(receive, self._silent):
                    yield part
            finally:
                body_read.set()

        async def watch() -> None:
            if has_body:
                await body_read.wait()
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await self._exchange(scope, body() if has_body else None, receive, send)
            group.cancel_scope.cancel()

    async def _exchange(self, scope: Scope, body: AsyncIterator[bytes] | None, receive: Receive, send: Send) -> None:
        request = httpx.Request(
            scope["method"],
            self._server,
            headers=_headers(scope, self._token),
            content=body,
            extensions={"target": target(scope), "timeout": self._timeout_of(scope["path"])},
        )
        try:
            response = await self._http.handle_async_request(request)
        except httpx.TransportError as error:
            return await error_response(UnreachableError(self._unavailable(error)))(scope, receive, send)
        except StalledRequestError as error:
            return await error_response(error)(scope, receive, send)
        except ClientGoneError:
            return
        try:
            await _return_response(response, send)
        except httpx.TransportError as error:
            # No final message, so that uvicorn closes the connection: half a response must not look complete.
            _log.warning("%s in the middle of %s", self._unavailable(error), scope["path"])
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()

    def _timeout_of(self, path: str) -> dict[str, float | None]:
        timeout = self._timeout.as_dict()
        return {**timeout, "read": None} if path.startswith(_LONG_RESPONSES) else timeout

    def _unavailable(self, error: Exception) -> str:
        """Return the message about a server that does not respond."""
        reasons: dict[type[Exception], str] = {
            httpx.ConnectTimeout: f"no connection within {self._timeout.connect:g} s",
            httpx.ReadTimeout: f"no response for {self._timeout.read:g} s",
        }
        number: int = getattr(error, "errno", None) or 0
        reason = (number > 0 and os.strerror(number)) or reasons.get(type(error)) or str(error) or type(error).__name__
        return f"{self._name} does not answer ({reason}); it may be restarting, try again."


async def _return_response(response: httpx.Response, send: Send) -> None:
    headers = _without(_NOT_RETURNED, response.headers.raw)
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    async for part in response.aiter_raw():
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def target(scope: Scope) -> bytes:
    """Return path and query as sent: decoded and encoded again, they might name something else."""
    query = scope["query_string"]
    return bytes(scope["raw_path"]) + (b"?" + query if query else b"")


def _headers(scope: Scope, token: _Token) -> _RawHeaders:
    known = Headers(scope=scope)
    chain = [*known.getlist("x-forwarded-for"), *([scope["client"][0]] if scope.get("client") else [])]
    # `Transfer-Encoding` overrides a length (RFC 9112, 6.3), and two servers might split the body differently.
    left_out = _NOT_SENT | ({"content-length"} if "transfer-encoding" in known else set())
    added = [(b"x-forwarded-for", ", ".join(chain).encode("latin-1"))]
    if token is not None and principal_of(scope) != NOBODY:
        added.append((b"authorization", f"Bearer {token()}".encode()))
    return [*_without(left_out, scope["headers"]), *added]


def _without(names: Iterable[str], headers: Iterable[tuple[bytes, bytes]]) -> _RawHeaders:
    """Return the headers except those in `names` and those that `Connection` names."""
    lowered = [(name.lower(), value) for name, value in headers]
    named = b",".join(value for name, value in lowered if name == b"connection").decode("latin-1").lower()
    left_out = {*names, *(name.strip() for name in named.split(","))}
    return [(name, value) for name, value in lowered if name.decode("latin-1") not in left_out]
