"""Reverse proxy: requests, responses and WebSockets are forwarded unchanged."""

from __future__ import annotations

import gzip
import hashlib
import json
import time

import httpx
import pytest
from ray_head import (
    AUTHORIZED,
    BOUND_S,
    CLUSTER_TOKEN,
    FLOOD,
    MEBIBYTE,
    NO_TLS,
    TOKEN,
    Head,
    gateway_to,
    raw,
    served,
    talking,
)
from waiting import wait_for
from websockets.exceptions import ConnectionClosed, InvalidStatus

BIG = 50
"""Mebibytes."""


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_request_is_forwarded_unchanged(client: httpx.Client, gateway: str, head: Head, method: str) -> None:
    target = "/a%20b/c%2Fd;e?q=%2B1&q=2&empty="
    cookies = {"Cookie": "a=1; b=2", "X-Forwarded-For": "192.0.2.1", "X-Twice": "1", "TE": "trailers"}
    answer = client.request(method, target, content=b"body", headers=cookies).json()
    received = [tuple(item) for item in answer["headers"]]
    assert (answer["method"], answer["target"], answer["size"]) == (method, target, 4)
    assert dict(received) | {"host": head.address.removeprefix("http://")} == dict(received), "Host is not the head's"
    assert "cookie" not in dict(received), "a browser's cookies reached the head"
    assert ("x-forwarded-for", "192.0.2.1, 127.0.0.1") in received
    assert [value for name, value in received if "authorization" in name] == [f"Bearer {CLUSTER_TOKEN}"]
    assert "te" not in dict(received)
    assert len(received) == len(dict(received)), "a header or the body arrived twice"


def test_duplicate_content_length_is_forwarded_once(gateway: str) -> None:
    answer = raw(
        gateway,
        "POST /echo HTTP/1.1\r\nHost: gateway\r\nConnection: close, X-Secret\r\nX-Secret: 1\r\n"
        f"Authorization: Bearer {TOKEN}\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n"
        "5\r\nhello\r\n0\r\n\r\n",
    )
    received = json.loads(answer[answer.index("{") : answer.rindex("}") + 1])
    assert received["size"] == 5
    assert not {"x-secret", "content-length"} & {name for name, _ in received["headers"]}


def test_response_is_forwarded_unchanged(client: httpx.Client) -> None:
    with client.stream("GET", "/squeezed") as answer:
        squeezed_bytes = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) == len(squeezed_bytes)
    assert gzip.decompress(squeezed_bytes) == b"dashboard " * 1000
    assert "x-hop" not in answer.headers
    assert len(answer.headers.get_list("date")) == len(answer.headers.get_list("server")) == 1
    assert client.head("/squeezed").headers["content-length"] == str(len(squeezed_bytes))


def test_proxy_passes_redirects_and_cookies_through(client: httpx.Client) -> None:
    answer = client.get("/moved", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/elsewhere")
    assert [line.split(";")[0] for line in answer.headers.get_list("set-cookie")] == ["a=1", "b=2"]
    with httpx.Client(base_url=str(client.base_url), headers=AUTHORIZED, verify=NO_TLS) as other:
        assert "cookie" not in dict(other.get("/echo").json()["headers"]), "a cookie reached another client"


@pytest.mark.parametrize("length", [{}, {"Content-Length": str(BIG * len(MEBIBYTE))}])
def test_large_bodies_are_forwarded_completely(client: httpx.Client, length: dict[str, str]) -> None:
    answer = client.put("/echo", content=(MEBIBYTE for _ in range(BIG)), headers=length).json()
    assert answer["digest"] == hashlib.sha256(MEBIBYTE * BIG).hexdigest()
    assert len(client.get(f"/big?size={BIG}").content) == BIG * len(MEBIBYTE)


def test_response_is_streamed(client: httpx.Client) -> None:
    with client.stream("GET", "/halting") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "first"
        client.get("/go")
        assert next(lines) == "last"


def test_slow_reader_applies_backpressure_to_head(client: httpx.Client) -> None:
    with client.stream("GET", f"/big?size={FLOOD}") as answer:
        parts = answer.iter_raw()
        assert next(parts)
        assert settled(client, "sent") < FLOOD - 80, "the gateway buffered data that the client has not read"


def settled(client: httpx.Client, what: str) -> int:
    """Wait until a counter of the head stops changing, and return it."""
    seen: list[int] = [-1]

    def still() -> bool:
        time.sleep(0.2)
        seen.append(client.get("/counts").json()[what])
        return seen[-1] == seen[-2]

    wait_for(still, f"a stable count of {what}")
    return seen[-1]


def test_client_disconnect_ends_stream_of_head(client: httpx.Client) -> None:
    before = client.get("/counts").json().get("ended", 0)
    with client.stream("GET", "/halting") as answer:
        assert next(answer.iter_lines()) == "first"
    wait_for(lambda: client.get("/counts").json().get("ended", 0) > before, "the end of the head's stream")


def test_stalled_upload_is_ended(gateway: str) -> None:
    answer = raw(
        gateway, f"PUT /echo HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\nhalf"
    )
    assert answer.startswith("HTTP/1.1 408"), answer
    assert "stalled for 0.5 s" in answer


# --- While the head is unavailable ---


def test_unavailable_head_is_named(closed_port: int) -> None:
    with served(gateway_to(f"http://127.0.0.1:{closed_port}")) as address:
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


def test_silent_head_times_out_except_for_streams(client: httpx.Client) -> None:
    answer = client.get("/silent")
    assert (answer.status_code, "(no response for 0.5 s)" in answer.text) == (503, True)
    assert client.get("/api/v0/logs/stream").text == "at last"


def test_truncated_response_fails_at_client() -> None:
    dying = Head()
    with (
        served(gateway_to(dying.address)) as address,
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


def test_websocket_messages_pass_both_ways(gateway: str) -> None:
    headers = {**AUTHORIZED, "Cookie": "a=1", "X-Own": "2"}
    with talking(gateway, "/talk?q=%2B1", additional_headers=headers, subprotocols=["first", "second"]) as socket:
        assert socket.subprotocol == "second"
        received = json.loads(socket.recv(BOUND_S))
        assert received["target"] == "/talk?q=%2B1"
        assert "cookie" not in received["headers"]
        assert {"x-own": "2", "authorization": f"Bearer {CLUSTER_TOKEN}"}.items() <= received["headers"].items()
        for message in ("text é", b"\x00bytes", "", b"", "x" * (4 << 20)):
            socket.send(message)
            assert socket.recv(BOUND_S) == message


def test_websocket_close_codes_pass_both_ways(gateway: str, client: httpx.Client) -> None:
    with talking(gateway) as socket:
        socket.recv(BOUND_S)
        socket.send("close")
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(BOUND_S)
        assert closed.value.rcvd
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "as you wish")
    with talking(gateway) as socket:
        socket.recv(BOUND_S)
        socket.close(4002)
    wait_for(lambda: client.get("/counts").json().get("closed with") == 4002, "the client's code at the head")
    with talking(gateway) as socket:
        socket.recv(BOUND_S)
        socket.socket.shutdown(2)
        # uvicorn reports a lost connection like one that was closed without a code.
        wait_for(lambda: client.get("/counts").json().get("closed with") == 1000, "the end at the head")


def test_rejected_websocket_handshake_reaches_client(gateway: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        talking(gateway, "/refuse")
    assert (refused.value.response.status_code, refused.value.response.body) == (404, b"no such job")


def test_slow_websocket_client_applies_backpressure(gateway: str, client: httpx.Client) -> None:
    with talking(gateway, max_queue=1) as socket:
        socket.recv(BOUND_S)
        socket.send("flood")
        socket.recv(BOUND_S)
        assert settled(client, "flood") < FLOOD - 80, "the gateway buffered data that the client has not read"
        for _ in range(FLOOD - 1):
            assert len(socket.recv(BOUND_S)) == len(MEBIBYTE)
