"""The gateway's door: who may pass, and that what passes arrives as it was sent.

Run as a program, this file is what stands in for Ray's head.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from mlplatform.gateway.http.auth import COOKIE, TokenAuth
from mlplatform.gateway.http.proxy import Passage

TOKEN = "0123456789abcdef0123456789abcdef"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
MEBIBYTE = bytes(1 << 20)
BIG = 50
FLOOD = 200
"""Mebibytes; more than two hops' socket buffers take (32 each by Linux's default)."""
BOUND_S = 10
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Unused; httpx would read the system's certificates for every client, which takes longer than most tests here."""


# --- What stands behind the door ---

counts: dict[str, int] = {}
may_end = asyncio.Event()


async def echo(request: Request) -> Response:
    digest, size = hashlib.sha256(), 0
    async for part in request.stream():
        digest.update(part)
        size += len(part)
    return JSONResponse(
        {
            "method": request.method,
            "target": request.scope["raw_path"].decode() + "?" + request.scope["query_string"].decode(),
            "headers": [[name.decode(), value.decode()] for name, value in request.headers.raw],
            "size": size,
            "digest": digest.hexdigest(),
        }
    )


async def big(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        counts["sent"] = 0
        for _ in range(size):
            yield MEBIBYTE
            counts["sent"] += 1

    size = int(request.query_params["size"])
    return StreamingResponse(parts(), headers={"Content-Length": str(size * len(MEBIBYTE))})


async def halting(request: Request) -> Response:
    """Gives a first line, the last one when /go is asked for, and notes when its client leaves."""

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
    await asyncio.sleep(1)
    return PlainTextResponse("at last")


async def talk(socket: WebSocket) -> None:
    await socket.accept("second" if "second" in socket.scope["subprotocols"] else None)
    await socket.send_json({"headers": dict(socket.headers), "target": f"{socket.url.path}?{socket.url.query}"})
    while (message := await socket.receive())["type"] == "websocket.receive":
        if message.get("text") == "close":
            await socket.close(4001, "as you wish")
        elif message.get("text") == "flood":
            counts["flood"] = 0
            for _ in range(FLOOD):
                await socket.send_bytes(MEBIBYTE)
                counts["flood"] += 1
        elif message.get("text") is not None:
            await socket.send_text(message["text"])
        else:
            await socket.send_bytes(message["bytes"])
    counts["closed with"] = message["code"]


async def refuse(socket: WebSocket) -> None:
    await socket.send_denial_response(PlainTextResponse("no such job", 404))


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
        WebSocketRoute("/talk", talk),
        WebSocketRoute("/refuse", refuse),
        Route("/{path:path}", echo, methods=["GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH"]),
    ]
)


class Head:
    """The head, a process of its own, so that it can be killed."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.address = f"http://127.0.0.1:{self.process.stdout.readline().strip()}"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """An ASGI application on a port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="error", proxy_headers=False, timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        wait_for(lambda: server.started, "the server")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(BOUND_S)


def door_to(head: str) -> ASGIApp:
    passage = Passage(head, connect_seconds=1, read_seconds=0.5, silent_seconds=0.5)
    return TokenAuth(Starlette(routes=[Mount("/", passage)]), lambda: TOKEN)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    started = Head()
    yield started
    started.kill()


@pytest.fixture(scope="module")
def door(head: Head) -> Iterator[str]:
    with served(door_to(head.address)) as address:
        yield address


@pytest.fixture
def client(door: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=door, headers=AUTHORIZED, timeout=BOUND_S, verify=NO_TLS) as opened:
        yield opened


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {BOUND_S} s"
        time.sleep(0.02)


def raw(address: str, request: str) -> str:
    """What comes back for a request written by hand."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), BOUND_S) as connection:
        connection.sendall(request.encode("latin-1"))
        received = b""
        while part := connection.recv(65536):
            received += part
    return received.decode("latin-1")


def talking(door: str, path: str = "/talk", **options: object) -> ClientConnection:
    options = {"additional_headers": AUTHORIZED, "max_size": None, "compression": None, **options}
    return connect(door.replace("http", "ws") + path, proxy=None, open_timeout=BOUND_S, **options)  # type: ignore[arg-type]


# --- Who may pass ---


@pytest.mark.parametrize(
    ("headers", "status", "text"),
    [
        ({"Authorization": f"Bearer {TOKEN}"}, 200, ""),
        ({"X-Ray-Authorization": f"Bearer {TOKEN}"}, 200, ""),
        ({"Cookie": f"theme=dark; {COOKIE}={TOKEN}"}, 200, ""),
        ({}, 401, "Unauthorized: Missing authentication token"),
        ({"Authorization": ""}, 401, "Unauthorized: Missing authentication token"),
        ({"Cookie": "theme=dark"}, 401, "Unauthorized: Missing authentication token"),
        ({"Authorization": f"Bearer {TOKEN}x"}, 403, "Forbidden: Invalid authentication token"),
        ({"Authorization": f"bearer {TOKEN}"}, 403, "Forbidden: Invalid authentication token"),
        ({"Authorization": TOKEN}, 403, "Forbidden: Invalid authentication token"),
        ({"Authorization": "Bearer \xe9"}, 403, "Forbidden: Invalid authentication token"),
        ({"Cookie": f"{COOKIE}=wrong"}, 403, "Forbidden: Invalid authentication token"),
        # The first that is there decides, as on Ray's head.
        ({"Authorization": "Bearer x", "X-Ray-Authorization": f"Bearer {TOKEN}"}, 403, "Forbidden: Invalid"),
        ({"X-Ray-Authorization": "Bearer x", "Cookie": f"{COOKIE}={TOKEN}"}, 403, "Forbidden: Invalid"),
    ],
)
def test_a_token_is_asked_for_as_rays_head_asks(door: str, headers: dict[str, str], status: int, text: str) -> None:
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    answer = httpx.get(f"{door}/api/jobs/", headers=encoded, verify=NO_TLS)
    assert (answer.status_code, answer.text[: len(text)]) == (status, text)


@pytest.mark.parametrize(
    "path", ["/", "/favicon.ico", "/static/js/main.js", "/api/authentication_mode", "/api/gcs_healthz"]
)
def test_what_a_browser_needs_to_log_in_is_open(door: str, path: str) -> None:
    assert httpx.get(door + path, verify=NO_TLS).status_code == 200


def test_logging_in_is_open_and_answered_by_the_head(door: str) -> None:
    answer = httpx.post(
        f"{door}/api/authenticate", headers={"Origin": door, "User-Agent": "Mozilla/5.0"}, verify=NO_TLS
    )
    assert answer.json()["method"] == "POST"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../api/jobs/",
        "/static/%2e%2e/api/jobs/",
        "/static/%2E./api/jobs/",
        "/static/..%2fapi/jobs/",
        "/static/..%5capi/jobs/",
        "/static/..\\api/jobs/",
        "/static/%252e%252e/api/jobs/",
        "/static/./../api/jobs/",
        "/static//../api/jobs/",
        "//api/jobs/",
        "/%2fapi/jobs/",
        "/./api/jobs/",
        "/static/x#/../../api/jobs/",
        "/static/%00/jobs/",
        "/static/%ff/jobs/",
        "http://elsewhere/static/../api/jobs/",
        "*",
    ],
)
def test_no_path_opens_another_one(door: str, path: str) -> None:
    answer = raw(door, f"GET {path} HTTP/1.1\r\nHost: door\r\nConnection: close\r\n\r\n")
    assert answer.startswith("HTTP/1.1 400"), answer
    assert "is ambiguous" in answer


@pytest.mark.parametrize(
    "path", ["/static", "/staticx", "/favicon.ico/", "/api/authenticate/x", "/%61pi/jobs/", "/API/gcs_healthz"]
)
def test_only_the_very_paths_are_open(door: str, path: str) -> None:
    assert httpx.get(door + path, verify=NO_TLS).status_code == 401


@pytest.mark.parametrize("lines", ["GET", "GET / HTTP/x", "GET /\x80 HTTP/1.1\r\nHost: a\r\n\r\n", "\r\n\r\n\r\n\r\n"])
def test_what_is_no_request_is_refused(door: str, lines: str) -> None:
    answer = raw(door, f"{lines}\r\n\r\n")
    assert answer == "" or answer.startswith("HTTP/1.1 400"), answer


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    "header", [("User-Agent", "Mozilla/5.0"), ("Origin", "http://evil"), ("Sec-Fetch-Site", "same-site")]
)
def test_browsers_may_look_and_not_change(client: httpx.Client, method: str, header: tuple[str, str]) -> None:
    answer = client.request(method, "/api/jobs/", headers=dict([header]))
    assert (answer.status_code, answer.text) == (405, f"'{method}' method not allowed for browser traffic.")
    assert client.get("/api/jobs/", headers=dict([header])).status_code == 200


@pytest.mark.parametrize(("headers", "status"), [({}, 401), ({"Authorization": "Bearer x"}, 403)])
def test_a_websocket_needs_the_token_too(door: str, headers: dict[str, str], status: int) -> None:
    with pytest.raises(InvalidStatus) as refused:
        talking(door, additional_headers=headers)
    assert refused.value.response.status_code == status


# --- Requests ---


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_a_request_arrives_as_it_was_sent(client: httpx.Client, door: str, head: Head, method: str) -> None:
    target = "/a%20b/c%2Fd;e?q=%2B1&q=2&empty="
    cookies = {"Cookie": "a=1; b=2", "X-Forwarded-For": "192.0.2.1", "X-Twice": "1", "TE": "trailers"}
    answer = client.request(method, target, content=b"body", headers=cookies).json()
    received = [tuple(item) for item in answer["headers"]]
    assert (answer["method"], answer["target"], answer["size"]) == (method, target, 4)
    assert dict(received) | {"host": head.address.removeprefix("http://")} == dict(received), "Host is the head's"
    assert ("cookie", "a=1; b=2") in received
    assert ("x-forwarded-for", "192.0.2.1, 127.0.0.1") in received
    assert ("authorization", f"Bearer {TOKEN}") in received
    assert "te" not in dict(received)
    assert len(received) == len(dict(received)), "nothing came twice"


def test_a_request_with_two_lengths_has_one_behind_the_door(door: str) -> None:
    answer = raw(
        door,
        "POST /echo HTTP/1.1\r\nHost: door\r\nConnection: close, X-Secret\r\nX-Secret: 1\r\n"
        f"Authorization: Bearer {TOKEN}\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n"
        "5\r\nhello\r\n0\r\n\r\n",
    )
    received = json.loads(answer[answer.index("{") : answer.rindex("}") + 1])
    assert received["size"] == 5
    assert not {"x-secret", "content-length"} & {name for name, _ in received["headers"]}


def test_an_answer_comes_back_as_it_was_given(client: httpx.Client) -> None:
    with client.stream("GET", "/squeezed") as answer:
        squeezed_bytes = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) == len(squeezed_bytes)
    assert gzip.decompress(squeezed_bytes) == b"dashboard " * 1000
    assert "x-hop" not in answer.headers
    assert len(answer.headers.get_list("date")) == len(answer.headers.get_list("server")) == 1
    assert client.head("/squeezed").headers["content-length"] == str(len(squeezed_bytes))


def test_redirects_and_cookies_are_the_clients(client: httpx.Client) -> None:
    answer = client.get("/moved", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/elsewhere")
    assert [line.split(";")[0] for line in answer.headers.get_list("set-cookie")] == ["a=1", "b=2"]
    with httpx.Client(base_url=str(client.base_url), headers=AUTHORIZED, verify=NO_TLS) as other:
        assert "cookie" not in dict(other.get("/echo").json()["headers"]), "no cookie reaches another client"


@pytest.mark.parametrize("length", [{}, {"Content-Length": str(BIG * len(MEBIBYTE))}])
def test_large_bodies_pass_whole(client: httpx.Client, length: dict[str, str]) -> None:
    answer = client.put("/echo", content=(MEBIBYTE for _ in range(BIG)), headers=length).json()
    assert answer["digest"] == hashlib.sha256(MEBIBYTE * BIG).hexdigest()
    assert len(client.get(f"/big?size={BIG}").content) == BIG * len(MEBIBYTE)


def test_an_answer_streams(client: httpx.Client) -> None:
    with client.stream("GET", "/halting") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "first"
        client.get("/go")
        assert next(lines) == "last"


def test_a_slow_reader_slows_the_head_down(client: httpx.Client) -> None:
    with client.stream("GET", f"/big?size={FLOOD}") as answer:
        parts = answer.iter_raw()
        assert next(parts)
        assert settled(client, "sent") < FLOOD - 80, "the door kept what nobody has read"


def settled(client: httpx.Client, what: str) -> int:
    """A count of the head's once it stands still."""
    seen: list[int] = [-1]

    def still() -> bool:
        time.sleep(0.2)
        seen.append(client.get("/counts").json()[what])
        return seen[-1] == seen[-2]

    wait_for(still, f"a standing count of {what}")
    return seen[-1]


def test_who_leaves_ends_the_heads_stream(client: httpx.Client) -> None:
    before = client.get("/counts").json().get("ended", 0)
    with client.stream("GET", "/halting") as answer:
        assert next(answer.iter_lines()) == "first"
    wait_for(lambda: client.get("/counts").json().get("ended", 0) > before, "the end of the head's stream")


def test_an_upload_that_stands_still_is_ended(door: str) -> None:
    answer = raw(
        door, f"PUT /echo HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\nhalf"
    )
    assert answer.startswith("HTTP/1.1 408"), answer
    assert "stood still for 0.5 s" in answer


# --- While the head is away ---


def test_a_head_that_is_away_is_named(closed_port: int) -> None:
    with served(door_to(f"http://127.0.0.1:{closed_port}")) as address:
        for _ in range(3):
            answer = httpx.post(f"{address}/x", headers=AUTHORIZED, content=b"body", verify=NO_TLS)
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "5"
            assert answer.text.startswith(f"Ray's head at http://127.0.0.1:{closed_port} does not answer (")
            assert answer.text.endswith("); it may be restarting, try again.")
        with talking(address) as socket, pytest.raises(ConnectionClosed) as closed:
            socket.recv(BOUND_S)
        assert closed.value.rcvd
        assert closed.value.rcvd.code == 1013
        assert "it may be restarting" in closed.value.rcvd.reason


def test_a_silent_head_is_given_up_but_for_its_streams(client: httpx.Client) -> None:
    answer = client.get("/silent")
    assert (answer.status_code, "(nothing came for 0.5 s)" in answer.text) == (503, True)
    assert client.get("/api/v0/logs/stream").text == "at last"


def test_half_an_answer_does_not_look_whole_and_the_next_head_is_found() -> None:
    dying = Head()
    with (
        served(door_to(dying.address)) as address,
        httpx.Client(base_url=address, headers=AUTHORIZED, verify=NO_TLS) as client,
    ):
        with talking(address) as socket, client.stream("GET", "/halting") as answer:
            lines = answer.iter_lines()
            assert next(lines) == "first"
            socket.recv(BOUND_S)
            dying.kill()
            with pytest.raises(httpx.RemoteProtocolError):
                next(lines)
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(BOUND_S)
            assert closed.value.rcvd
            assert closed.value.rcvd.code == 1013
        assert client.get("/echo").status_code == 503


# --- Websockets ---


def test_messages_pass_both_ways(door: str) -> None:
    headers = {**AUTHORIZED, "Cookie": "a=1", "X-Own": "2"}
    with talking(door, "/talk?q=%2B1", additional_headers=headers, subprotocols=["first", "second"]) as socket:
        assert socket.subprotocol == "second"
        received = json.loads(socket.recv(BOUND_S))
        assert received["target"] == "/talk?q=%2B1"
        assert {"cookie": "a=1", "x-own": "2", **{k.lower(): v for k, v in AUTHORIZED.items()}}.items() <= received[
            "headers"
        ].items()
        for message in ("text é", b"\x00bytes", "", b"", "x" * (4 << 20)):
            socket.send(message)
            assert socket.recv(BOUND_S) == message


def test_close_codes_pass_both_ways(door: str, client: httpx.Client) -> None:
    with talking(door) as socket:
        socket.recv(BOUND_S)
        socket.send("close")
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(BOUND_S)
        assert closed.value.rcvd
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "as you wish")
    with talking(door) as socket:
        socket.recv(BOUND_S)
        socket.close(4002)
    wait_for(lambda: client.get("/counts").json().get("closed with") == 4002, "the client's code at the head")
    with talking(door) as socket:
        socket.recv(BOUND_S)
        socket.socket.shutdown(2)
        # uvicorn tells of a lost connection as of one that was closed without a code.
        wait_for(lambda: client.get("/counts").json().get("closed with") == 1000, "the end at the head")


def test_a_refused_handshake_is_the_clients_to_see(door: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        talking(door, "/refuse")
    assert (refused.value.response.status_code, refused.value.response.body) == (404, b"no such job")


def test_a_slow_listener_slows_the_head_down(door: str, client: httpx.Client) -> None:
    with talking(door, max_queue=1) as socket:
        socket.recv(BOUND_S)
        socket.send("flood")
        socket.recv(BOUND_S)
        assert settled(client, "flood") < FLOOD - 80, "the door kept what nobody has read"
        for _ in range(FLOOD - 1):
            assert len(socket.recv(BOUND_S)) == len(MEBIBYTE)


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(head_app, log_level="error")).run(sockets=[listener])
