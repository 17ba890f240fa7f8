"""Sessions of browsers: login with the token, expiry, logout, and what the Ray head sees of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from ray_head import AUTHORIZED, BOUND_S, CLUSTER_TOKEN, NO_TLS, TOKEN, Head, served
from sqlalchemy import update
from sqlalchemy.orm import Session
from starlette.routing import Mount
from stored import database_in
from waiting import wait_for

from mlplatform_gateway.database.engine import connect
from mlplatform_gateway.http.application import application
from mlplatform_gateway.http.auth import COOKIE, LOGIN, LOGOUT, TokenAuth, TokenCheck
from mlplatform_gateway.people.api import session_routes
from mlplatform_gateway.people.schema import SessionRow
from mlplatform_gateway.people.sessions import Sessions
from mlplatform_gateway.ray.proxy import ReverseProxy

BROWSER = {"User-Agent": "Mozilla/5.0"}
ECHO = "/echo"


class LoginGateway:
    """A gateway that authenticates, keeps sessions in a database, and proxies; its token can be changed."""

    def __init__(self, folder: Path, head: str) -> None:
        self.token = TOKEN
        self.database = folder / "gateway.db"
        self.engine = connect(database_in(folder))
        self._head = head

    @contextmanager
    def running(self) -> Iterator[httpx.Client]:
        """Serve the gateway and return a browser without a session; each call is a start of the gateway."""
        check = TokenCheck(lambda: self.token)
        sessions = Sessions(self.engine, lambda: self.token)
        to_head = Mount("/", ReverseProxy(self._head, lambda: CLUSTER_TOKEN))
        app = application([*session_routes(check, sessions).routes, to_head], others=("",))
        with (
            served(TokenAuth(app, check, sessions)) as address,
            httpx.Client(
                base_url=address, headers={**BROWSER, "Origin": address}, timeout=BOUND_S, verify=NO_TLS
            ) as browser,
        ):
            yield browser


@pytest.fixture
def gateway(tmp_path: Path, head: Head) -> Iterator[LoginGateway]:
    gateway = LoginGateway(tmp_path, head.address)
    yield gateway
    gateway.engine.dispose()


@pytest.fixture
def browser(gateway: LoginGateway) -> Iterator[httpx.Client]:
    with gateway.running() as browser:
        yield browser


def log_in(browser: httpx.Client) -> str:
    answer = browser.post(LOGIN, headers=AUTHORIZED)
    assert answer.json()["status"] == "authenticated"
    return str(browser.cookies[COOKIE])


@pytest.mark.parametrize(
    ("headers", "status", "text"),
    [
        ({}, 401, "Unauthorized: Missing authentication token"),
        ({"Authorization": f"Bearer {TOKEN}x"}, 403, "Forbidden: Invalid authentication token"),
    ],
)
def test_login_needs_token(browser: httpx.Client, headers: dict[str, str], status: int, text: str) -> None:
    answer = browser.post(LOGIN, headers=headers)
    assert (answer.status_code, answer.text) == (status, text)
    assert "set-cookie" not in answer.headers


def test_cookie_hides_token_and_is_closed_to_scripts(browser: httpx.Client) -> None:
    cookie = browser.post(LOGIN, headers=AUTHORIZED).headers["set-cookie"]
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}


def test_two_logins_are_two_sessions(browser: httpx.Client) -> None:
    assert log_in(browser) != log_in(browser)


def test_head_receives_token_instead_of_session(browser: httpx.Client) -> None:
    session_id = log_in(browser)
    browser.cookies.set("theme", "dark")
    received = browser.get(ECHO).json()["headers"]
    assert ["authorization", f"Bearer {CLUSTER_TOKEN}"] in received
    assert TOKEN not in str(received)
    assert "cookie" not in dict(received)
    assert session_id not in str(received)


@pytest.mark.parametrize("cookie", ["wrong", TOKEN])
def test_only_open_session_is_accepted(browser: httpx.Client, cookie: str) -> None:
    answer = browser.get(ECHO, headers={"Cookie": f"{COOKIE}={cookie}"})
    assert (answer.status_code, answer.text) == (403, "Forbidden: Invalid authentication token")


def test_session_outlives_gateway(gateway: LoginGateway) -> None:
    with gateway.running() as opened:
        session_id = log_in(opened)
    with gateway.running() as opened:
        url, cookie = f"{opened.base_url}{ECHO}", {"Cookie": f"{COOKIE}={session_id}"}
        assert httpx.get(url, headers=cookie, verify=NO_TLS).status_code == 200


@pytest.mark.parametrize("seconds", [-1, 3], ids=["before the first request", "after the first request"])
def test_expired_session_is_rejected(gateway: LoginGateway, seconds: int) -> None:
    with gateway.running() as opened:
        session_id = log_in(opened)
    with Session(gateway.engine) as session, session.begin():
        session.execute(update(SessionRow).values(expires=datetime.now(UTC) + timedelta(seconds=seconds)))
    with gateway.running() as opened:
        url, cookie = f"{opened.base_url}{ECHO}", {"Cookie": f"{COOKIE}={session_id}"}
        if seconds > 0:
            assert httpx.get(url, headers=cookie, verify=NO_TLS).status_code == 200
        wait_for(lambda: httpx.get(url, headers=cookie, verify=NO_TLS).status_code == 403, "the session to expire")


def test_logout_ends_session_everywhere(browser: httpx.Client) -> None:
    session_id = log_in(browser)
    assert browser.get(ECHO).status_code == 200
    assert browser.post(LOGOUT).status_code == 303
    assert COOKIE not in browser.cookies
    assert browser.get(ECHO, headers={"Cookie": f"{COOKIE}={session_id}"}).status_code == 403


def test_rotated_token_ends_sessions(gateway: LoginGateway, browser: httpx.Client) -> None:
    log_in(browser)
    assert browser.get(ECHO).status_code == 200
    gateway.token = "another token"
    assert browser.get(ECHO).status_code == 403


def test_database_keeps_neither_session_nor_token(gateway: LoginGateway, browser: httpx.Client) -> None:
    session_id = log_in(browser)
    content = gateway.database.read_bytes()
    assert session_id.encode() not in content
    assert TOKEN.encode() not in content


def test_session_may_not_change_anything_from_program(browser: httpx.Client) -> None:
    cookie, url = {"Cookie": f"{COOKIE}={log_in(browser)}"}, f"{browser.base_url}{ECHO}"
    for headers in (cookie, {**cookie, "User-Agent": "curl/8"}, {**cookie, "X-HTTP-Method-Override": "GET"}):
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"):
            answer = httpx.request(method, url, headers=headers, verify=NO_TLS)
            assert (answer.status_code, "send the token itself" in answer.text) == (405, True)
        for method in ("GET", "HEAD"):
            assert httpx.request(method, url, headers=headers, verify=NO_TLS).status_code == 200


def test_page_of_another_origin_may_not_log_browser_in(browser: httpx.Client) -> None:
    for origin in ("http://evil.example", "http://127.0.0.1:1", "null", "https://localhost"):
        answer = browser.post(LOGIN, headers={**AUTHORIZED, "Origin": origin})
        assert (answer.status_code, "may not use the gateway" in answer.text) == (403, True)
        assert "set-cookie" not in answer.headers


def test_other_origins_may_not_end_session(browser: httpx.Client) -> None:
    log_in(browser)
    for origin in ("http://evil.example", "http://127.0.0.1:1", "null", f"{browser.base_url}".replace("http", "ftp")):
        answer = browser.post(LOGOUT, headers={"Origin": origin})
        assert (answer.status_code, "may not use the gateway" in answer.text) == (403, True)
    assert browser.get(ECHO).status_code == 200
