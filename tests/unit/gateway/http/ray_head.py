"""Stand-in for the Ray head, and a gateway in front of it that only authenticates and proxies.

Run as a program, this module is the stand-in.
"""

import asyncio
import gzip
import hashlib
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket
from websockets.sync.client import ClientConnection, connect

from mlplatform_gateway.http.auth import TokenAuth, TokenCheck
from mlplatform_gateway.ray.proxy import ReverseProxy

TOKEN = "0123456789abcdef0123456789abcdef"
CLUSTER_TOKEN = "fedcba9876543210" * 2
"""Token that the head requires, and that the gateway accepts nowhere."""

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
MEBIBYTE = bytes(1 << 20)
FLOOD = 200
"""Mebibytes; exceeds the socket buffers of two hops (Linux's default: 32 each)."""

BOUND_S = 30

SILENT_S = 2
"""Time after which the gateway gives up a head that does not answer; a busy one needs more than half a second."""

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Unused. Otherwise httpx reads the system's certificates for every client, which takes longer than most tests."""


counts: dict[str, int] = {}
may_end = asyncio.Event()


async def echo(request: Request) -> Response:
    digest, size = hashlib.sha256(), 0
    async for part in request.stream():
        digest.update(part)
        size += len(part)
    target = request.scope["raw_path"].decode() + "?" + request.scope["query_string"].decode()
    headers = [[name.decode(), value.decode()] for name, value in request.headers.raw]
    body = {"size": size, "digest": digest.hexdigest()}
    return JSONResponse({"method": request.method, "target": target, "headers": headers, **body})


async def big(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        counts["sent"] = 0
        for _ in range(size):
            yield MEBIBYTE
            counts["sent"] += 1

    size = int(request.query_params["size"])
    return StreamingResponse(parts(), headers={"Content-Length": str(size * len(MEBIBYTE))})


async def halting(request: Request) -> Response:
    """Send the first line at once and the last line after a request for /go; record when the client disconnects."""

    async def parts() -> AsyncIterator[bytes]:
        may_end.clear()
        try:
            yield b"first\n"
            await may_end.wait()
            yield b"last\n"
        finally:
            counts["ended"] = counts.get("ended", 0) + 1

    return StreamingResponse(parts())


async def go(request: Request) -> Response:
    may_end.set()
    return Response()


async def squeezed(request: Request) -> Response:
    return Response(
        gzip.compress(b"dashboard " * 1000), headers={"Content-Encoding": "gzip", "Connection": "x-hop", "X-Hop": "1"}
    )


async def moved(request: Request) -> Response:
    answer = RedirectResponse("/elsewhere", 307)
    answer.set_cookie("a", "1")
    answer.set_cookie("b", "2")
    return answer


async def silent(request: Request) -> Response:
    await asyncio.sleep(SILENT_S + 1)
    return PlainTextResponse("at last")


async def talk(socket: WebSocket) -> None:
    """A WebSocket of the gateway's own, such as a followed log."""
    await socket.accept()
    await socket.send_text("hello")
    while (message := await socket.receive())["type"] == "websocket.receive":
        await socket.send_text(message["text"])


async def counted(request: Request) -> Response:
    return JSONResponse(counts)


head_app = Starlette(
    routes=[
        Route("/big", big),
        Route("/halting", halting),
        Route("/go", go),
        Route("/squeezed", squeezed),
        Route("/moved", moved),
        Route("/silent", silent),
        Route("/api/v0/logs/stream", silent),
        Route("/counts", counted),
        Route("/{path:path}", echo, methods=["GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH"]),
    ]
)


class Head:
    """The stand-in in its own process, so that tests can kill it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.address = f"http://127.0.0.1:{self.process.stdout.readline().strip()}"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def served(app: ASGIApp, **options: Any) -> Iterator[str]:
    """Serve an ASGI application on a local port; the options are uvicorn's."""
    from waiting import wait_for  # not in the process of `Head`, whose path lacks it

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="error", proxy_headers=False, timeout_graceful_shutdown=1, **options)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        wait_for(lambda: server.started, "the server")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(BOUND_S)


def gateway_to(head: str) -> ASGIApp:
    timeout = httpx.Timeout(SILENT_S, connect=SILENT_S, pool=None)
    proxy = ReverseProxy(head, lambda: CLUSTER_TOKEN, timeout, silent_seconds=SILENT_S)
    check = TokenCheck(lambda: TOKEN, cluster=lambda: CLUSTER_TOKEN)
    return TokenAuth(Starlette(routes=[WebSocketRoute("/talk", talk), Mount("/", proxy)]), check)


def raw(address: str, request: str) -> str:
    """The response to a raw request."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), BOUND_S) as connection:
        connection.sendall(request.encode("latin-1"))
        received = b""
        while part := connection.recv(65536):
            received += part
    return received.decode("latin-1")


def talking(gateway: str, path: str = "/talk", **options: object) -> ClientConnection:
    options = {"additional_headers": AUTHORIZED, "max_size": None, "compression": None, **options}
    return connect(gateway.replace("http", "ws") + path, proxy=None, open_timeout=BOUND_S, **options)  # type: ignore[arg-type]


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(head_app, log_level="error")).run(sockets=[listener])
