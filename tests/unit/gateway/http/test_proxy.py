"""Reverse proxy: requests and responses are forwarded unchanged."""

import gzip
import hashlib
import json
import time

import httpx
import pytest
from ray_head import AUTHORIZED, CLUSTER_TOKEN, FLOOD, MEBIBYTE, NO_TLS, SILENT_S, TOKEN, Head, gateway_to, raw, served
from waiting import wait_for

BIG = 50
"""Mebibytes."""


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_request_is_forwarded_unchanged(proxied: httpx.Client, gateway: str, head: Head, method: str) -> None:
    target = "/a%20b/c%2Fd;e?q=%2B1&q=2&empty="
    cookies = {"Cookie": "a=1; b=2", "X-Forwarded-For": "192.0.2.1", "X-Twice": "1", "TE": "trailers"}
    answer = proxied.request(method, target, content=b"body", headers=cookies).json()
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


def test_response_is_forwarded_unchanged(proxied: httpx.Client) -> None:
    with proxied.stream("GET", "/squeezed") as answer:
        squeezed_bytes = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) == len(squeezed_bytes)
    assert gzip.decompress(squeezed_bytes) == b"dashboard " * 1000
    assert "x-hop" not in answer.headers
    assert len(answer.headers.get_list("date")) == len(answer.headers.get_list("server")) == 1
    assert proxied.head("/squeezed").headers["content-length"] == str(len(squeezed_bytes))


def test_proxy_passes_redirects_and_cookies_through(proxied: httpx.Client) -> None:
    answer = proxied.get("/moved", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/elsewhere")
    assert [line.split(";")[0] for line in answer.headers.get_list("set-cookie")] == ["a=1", "b=2"]
    with httpx.Client(base_url=str(proxied.base_url), headers=AUTHORIZED, verify=NO_TLS) as other:
        assert "cookie" not in dict(other.get("/echo").json()["headers"]), "a cookie reached another client"


@pytest.mark.parametrize("length", [{}, {"Content-Length": str(BIG * len(MEBIBYTE))}])
def test_large_bodies_are_forwarded_completely(proxied: httpx.Client, length: dict[str, str]) -> None:
    answer = proxied.put("/echo", content=(MEBIBYTE for _ in range(BIG)), headers=length).json()
    assert answer["digest"] == hashlib.sha256(MEBIBYTE * BIG).hexdigest()
    assert len(proxied.get(f"/big?size={BIG}").content) == BIG * len(MEBIBYTE)


def test_response_is_streamed(proxied: httpx.Client) -> None:
    with proxied.stream("GET", "/halting") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "first"
        proxied.get("/go")
        assert next(lines) == "last"


def test_slow_reader_applies_backpressure_to_head(proxied: httpx.Client) -> None:
    with proxied.stream("GET", f"/big?size={FLOOD}") as answer:
        parts = answer.iter_raw()
        assert next(parts)
        assert settled(proxied, "sent") < FLOOD - 80, "the gateway buffered data that the client has not read"


def settled(proxied: httpx.Client, what: str) -> int:
    """Wait until a counter of the head stops changing, and return it."""
    seen: list[int] = [-1]

    def still() -> bool:
        time.sleep(0.2)
        seen.append(proxied.get("/counts").json()[what])
        return seen[-1] == seen[-2]

    wait_for(still, f"a stable count of {what}")
    return seen[-1]


def test_client_disconnect_ends_stream_of_head(proxied: httpx.Client) -> None:
    before = proxied.get("/counts").json().get("ended", 0)
    with proxied.stream("GET", "/halting") as answer:
        assert next(answer.iter_lines()) == "first"
    wait_for(lambda: proxied.get("/counts").json().get("ended", 0) > before, "the end of the head's stream")


def test_stalled_upload_is_ended(gateway: str) -> None:
    answer = raw(
        gateway, f"PUT /echo HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\nhalf"
    )
    assert answer.startswith("HTTP/1.1 408"), answer
    assert f"stalled for {SILENT_S} s" in answer


# --- While the head is unavailable ---


def test_unavailable_head_is_named(closed_port: int) -> None:
    with served(gateway_to(f"http://127.0.0.1:{closed_port}")) as address:
        for _ in range(3):
            answer = httpx.post(f"{address}/x", headers=AUTHORIZED, content=b"body", verify=NO_TLS)
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "5"
            assert answer.text.startswith(f"Ray's head at http://127.0.0.1:{closed_port} does not answer (")
            assert answer.text.endswith("); it may be restarting, try again.")


def test_silent_head_times_out_except_for_streams(proxied: httpx.Client) -> None:
    answer = proxied.get("/silent")
    assert (answer.status_code, f"(no response for {SILENT_S} s)" in answer.text) == (503, True)
    assert proxied.get("/api/v0/logs/stream").text == "at last"


def test_truncated_response_fails_at_client() -> None:
    dying = Head()
    with (
        served(gateway_to(dying.address)) as address,
        httpx.Client(base_url=address, headers=AUTHORIZED, verify=NO_TLS) as client,
    ):
        with client.stream("GET", "/halting") as answer:
            lines = answer.iter_lines()
            assert next(lines) == "first"
            dying.kill()
            with pytest.raises(httpx.RemoteProtocolError):
                next(lines)
        assert client.get("/echo").status_code == 503
