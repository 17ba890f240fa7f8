"""Token authentication, ambiguous paths, and the protection against cross-site requests."""

import httpx
import pytest
from ray_head import AUTHORIZED, BOUND_S, NO_TLS, TOKEN, raw, talking
from websockets.exceptions import InvalidStatus


@pytest.mark.parametrize(
    ("headers", "status", "text"),
    [
        ({"Authorization": f"Bearer {TOKEN}"}, 200, ""),
        ({"X-Ray-Authorization": f"Bearer {TOKEN}"}, 200, ""),
        ({}, 401, "Unauthorized: Missing authentication token"),
        ({"Authorization": ""}, 401, "Unauthorized: Missing authentication token"),
        ({"Cookie": "theme=dark"}, 401, "Unauthorized: Missing authentication token"),
        ({"Authorization": f"Bearer {TOKEN}x"}, 403, "Forbidden: Invalid authentication token"),
        ({"Authorization": f"bearer {TOKEN}"}, 403, "Forbidden: Invalid authentication token"),
        ({"Authorization": TOKEN}, 403, "Forbidden: Invalid authentication token"),
        ({"Authorization": "Bearer \xe9"}, 403, "Forbidden: Invalid authentication token"),
        # The first credential decides, as on Ray's head.
        ({"Authorization": "Bearer x", "X-Ray-Authorization": f"Bearer {TOKEN}"}, 403, "Forbidden: Invalid"),
    ],
)
def test_token_is_checked_like_rays_head(gateway: str, headers: dict[str, str], status: int, text: str) -> None:
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    answer = httpx.get(f"{gateway}/api/jobs/", headers=encoded, verify=NO_TLS)
    assert (answer.status_code, answer.text[: len(text)]) == (status, text)


@pytest.mark.parametrize(
    "path", ["/", "/favicon.ico", "/static/js/main.js", "/api/authentication_mode", "/api/gcs_healthz"]
)
def test_login_paths_need_no_token(gateway: str, path: str) -> None:
    assert httpx.get(gateway + path, verify=NO_TLS).status_code == 200


@pytest.mark.parametrize("path", ["/", "/favicon.ico", "/static/js/main.js", "/api/gcs_healthz"])
def test_open_paths_are_read_only_without_token(gateway: str, path: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert httpx.request(method, gateway + path, verify=NO_TLS).status_code == 401, method
    assert httpx.request("GET", gateway + path, content=b"body", verify=NO_TLS).status_code == 401
    assert httpx.request("GET", gateway + path, content=iter([b"body"]), verify=NO_TLS).status_code == 401
    with pytest.raises(InvalidStatus) as refused:
        talking(gateway, path, additional_headers={})
    assert refused.value.response.status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        *("/static/../api/jobs/", "/static/%2e%2e/api/jobs/", "/static/%2E./api/jobs/", "/static/..%2fapi/jobs/"),
        *("/static/..%5capi/jobs/", "/static/..\\api/jobs/", "/static/%252e%252e/api/jobs/", "/static/./../api/jobs/"),
        *("/static//../api/jobs/", "//api/jobs/", "/%2fapi/jobs/", "/./api/jobs/", "/static/x#/../../api/jobs/"),
        *("/static/%00/jobs/", "/static/%ff/jobs/", "http://elsewhere/static/../api/jobs/", "*"),
    ],
)
def test_path_tricks_do_not_bypass_authentication(gateway: str, path: str) -> None:
    answer = raw(gateway, f"GET {path} HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n")
    assert answer.startswith("HTTP/1.1 400"), answer
    assert "is ambiguous" in answer


@pytest.mark.parametrize(
    "path", ["/static", "/staticx", "/favicon.ico/", "/api/authenticate/x", "/%61pi/jobs/", "/API/gcs_healthz"]
)
def test_only_exact_open_paths_are_open(gateway: str, path: str) -> None:
    assert httpx.get(gateway + path, verify=NO_TLS).status_code == 401


@pytest.mark.parametrize("lines", ["GET", "GET / HTTP/x", "GET /\x80 HTTP/1.1\r\nHost: a\r\n\r\n", "\r\n\r\n\r\n\r\n"])
def test_malformed_requests_are_rejected(gateway: str, lines: str) -> None:
    answer = raw(gateway, f"{lines}\r\n\r\n")
    assert answer == "" or answer.startswith("HTTP/1.1 400"), answer


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    "header", [("User-Agent", "Mozilla/5.0"), ("Origin", "http://evil"), ("Sec-Fetch-Site", "same-site")]
)
def test_cross_site_browser_requests_are_read_only(proxied: httpx.Client, method: str, header: tuple[str, str]) -> None:
    answer = proxied.request(method, "/api/jobs/", headers=dict([header]))
    assert (answer.status_code, answer.text) == (405, f"'{method}' method not allowed for browser traffic.")
    assert proxied.get("/api/jobs/", headers=dict([header])).status_code == 200


@pytest.mark.parametrize(("headers", "status"), [({}, 401), ({"Authorization": "Bearer x"}, 403)])
def test_websocket_requires_token(gateway: str, headers: dict[str, str], status: int) -> None:
    with pytest.raises(InvalidStatus) as refused:
        talking(gateway, additional_headers=headers)
    assert refused.value.response.status_code == status


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "null"])
def test_websocket_rejects_other_origins(gateway: str, origin: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        talking(gateway, additional_headers={**AUTHORIZED, "Origin": origin})
    assert refused.value.response.status_code == 403
    with talking(gateway, additional_headers={**AUTHORIZED, "Origin": gateway}) as socket:
        assert socket.recv(BOUND_S)
