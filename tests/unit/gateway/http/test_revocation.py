"""Requests that last when their token is revoked: followed logs over HTTP, and WebSockets."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from peopled import as_person
from ray_head import BOUND_S, NO_TLS, Head, served, talk, talking
from sqlalchemy import Engine
from starlette.routing import Mount, WebSocketRoute
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from mlplatform_gateway.audit.store import PLATFORM
from mlplatform_gateway.http.application import application
from mlplatform_gateway.http.auth import COOKIE, LOGIN, LOGOUT, TokenAuth, TokenCheck
from mlplatform_gateway.people import api as people
from mlplatform_gateway.people.sessions import Sessions
from mlplatform_gateway.people.store import People
from mlplatform_gateway.people.tokens import Tokens
from mlplatform_gateway.ray.proxy import ReverseProxy


@pytest.fixture
def token(engine: Engine) -> str:
    code = asyncio.run(People(engine).add("ada", PLATFORM, administrator=True)).code
    return asyncio.run(Tokens(engine).exchange(code, "")).token


@pytest.fixture
def shared() -> list[str]:
    """The shared token, with the former ones before it."""
    return ["shared"]


@pytest.fixture
def gateway(engine: Engine, head: Head, shared: list[str]) -> Iterator[str]:
    """A gateway that checks tokens of lasting requests all the time."""
    check, sessions = TokenCheck(lambda: shared[-1], tokens=Tokens(engine)), Sessions(engine, lambda: shared[-1])
    others = [WebSocketRoute("/talk", talk), Mount("/", ReverseProxy(head.address))]
    app = application([*people.session_routes(check, sessions).routes, *others], others=("/talk", ""))
    with served(TokenAuth(app, check, sessions, check_seconds=0.05)) as address:
        yield address


def revoke(engine: Engine, token: str) -> None:
    asyncio.run(Tokens(engine).revoke(token.split("_")[1], PLATFORM))


def closed(socket: ClientConnection) -> str:
    """The reason with which the gateway closes a WebSocket, for the rights that have ended."""
    with pytest.raises(ConnectionClosed):
        socket.recv(BOUND_S)
    assert socket.close_code == 1008
    return socket.close_reason or ""


def test_stream_ends_without_looking_complete(gateway: str, engine: Engine, token: str) -> None:
    with (
        as_person(httpx.Client(base_url=gateway), token) as client,
        client.stream("GET", "/halting", timeout=BOUND_S) as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines) == "first"
        revoke(engine, token)
        with pytest.raises(httpx.RemoteProtocolError):
            next(lines)


def test_websocket_is_closed_with_the_reason(gateway: str, engine: Engine, token: str) -> None:
    with talking(gateway, additional_headers={"Authorization": f"Bearer {token}"}) as socket:
        assert socket.recv(BOUND_S)
        revoke(engine, token)
        assert "This token of ada was revoked" in closed(socket)


def test_request_of_changed_rights_ends(gateway: str, engine: Engine, token: str) -> None:
    with talking(gateway, additional_headers={"Authorization": f"Bearer {token}"}) as socket:
        assert socket.recv(BOUND_S)
        asyncio.run(People(engine).add_team("vision", {}, PLATFORM))
        asyncio.run(People(engine).add("ada", PLATFORM, team="vision"))
        assert "rights of ada have changed" in closed(socket)


def test_request_of_a_session_ends_with_the_log_out(gateway: str, token: str) -> None:
    with as_person(httpx.Client(base_url=gateway), token) as client:
        session = client.post(LOGIN).cookies[COOKIE]
    with talking(gateway, additional_headers={"Cookie": f"{COOKIE}={session}"}) as socket:
        assert socket.recv(BOUND_S)
        with httpx.Client(base_url=gateway, cookies={COOKIE: session}, timeout=BOUND_S) as browser:
            assert browser.post(LOGOUT).status_code == 303
        assert "session of ada has ended" in closed(socket)


@pytest.mark.parametrize("logged_in", [False, True], ids=["token", "session"])
def test_stream_of_the_shared_token_ends_with_its_rotation(gateway: str, shared: list[str], logged_in: bool) -> None:
    given = {"Authorization": f"Bearer {shared[-1]}"}
    if logged_in:
        given = {"Cookie": f"{COOKIE}={httpx.post(f'{gateway}{LOGIN}', headers=given, verify=NO_TLS).cookies[COOKIE]}"}
    with talking(gateway, additional_headers=given) as socket:
        assert socket.recv(BOUND_S)
        shared.append("another")
        closed(socket)


def test_request_of_valid_token_lasts(gateway: str, token: str) -> None:
    with talking(gateway, additional_headers={"Authorization": f"Bearer {token}"}) as socket:
        assert socket.recv(BOUND_S)
        with pytest.raises(TimeoutError):
            socket.recv(0.5)
        socket.send("still here")
        assert socket.recv(BOUND_S) == "still here"
