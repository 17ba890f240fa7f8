"""Invitations of hosts: one code, one host, ten minutes, and a server that its certificate identifies."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

import pytest

from mlplatform.errors import HostError
from mlplatform.stack.invitation import TRIES, Invitation, UnreadyError, request_join

REQUEST = {"name": "h2", "key": "k"}


class Opened:
    """An invitation that waits in a thread, as `make host-token` does."""

    def __init__(self, **options: Any) -> None:
        self.requests: list[dict[str, Any]] = []
        self.outcome = ""
        self.invitation = Invitation(0, self.welcome, self.send, **options)
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def welcome(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["name"] == "head":
            raise HostError("Invalid name 'head'.")
        if request["name"] == "amd" and not self.requests:
            self.requests.append(request)
            raise UnreadyError("it lacks TORCH_INDEX_URL.")
        self.requests.append(request)
        return {"address": "10.0.0.129"}

    def send(self, request: dict[str, Any], out: BinaryIO) -> None:
        out.write(b"an archive" * 100_000)

    def _wait(self) -> None:
        try:
            self.outcome = f"{self.invitation.wait()} has joined"
        except HostError as error:
            self.outcome = str(error)

    def join(self, code: str | None = None, fingerprint: str | None = None, **request: str) -> tuple[Any, bytes]:
        received = []
        request_join(
            f"127.0.0.1:{self.invitation.port}",
            fingerprint or self.invitation.fingerprint,
            code or self.invitation.code,
            {**REQUEST, **request},
            lambda reply, archive: received.append((reply, archive.read())),
        )
        return received[0]

    def ended(self) -> str:
        """Outcome that `make host-token` prints."""
        self._thread.join(10)
        assert not self._thread.is_alive(), "the invitation is still open"
        return self.outcome


@pytest.fixture
def opened() -> Any:
    made: list[Opened] = []

    def open_one(**options: Any) -> Opened:
        made.append(Opened(**options))
        return made[-1]

    yield open_one
    for one in made:
        one.invitation.error = "The test is over."
        one.invitation.settle()
        one.ended()


Open = Callable[..., Opened]


def test_right_code_joins_host_and_ends_invitation(opened: Open) -> None:
    one = opened()
    reply, archive = one.join(code=one.invitation.code.upper())
    assert reply == {"address": "10.0.0.129"}
    assert archive == b"an archive" * 100_000
    assert one.requests == [REQUEST]
    assert one.ended() == "h2 has joined"
    with pytest.raises(HostError, match="No invitation is open at"):
        one.join()


def test_wrong_code_is_rejected_and_right_one_still_works(opened: Open) -> None:
    one = opened()
    with pytest.raises(HostError, match="rejected the code: it is wrong, was used or has expired"):
        one.join(code="0000-0000-0000")
    assert one.requests == []
    one.join()
    assert one.ended() == "h2 has joined"


def test_invitation_is_withdrawn_after_wrong_codes(opened: Open) -> None:
    one = opened()
    for _ in range(TRIES):
        with pytest.raises(HostError, match="rejected the code"):
            one.join(code="0000-0000-0000")
    assert one.ended().startswith(f"{TRIES} wrong codes were received")
    assert not one.invitation.admits(one.invitation.code)


def test_expired_code_is_rejected(opened: Open) -> None:
    one = opened(seconds=0.0)
    assert not one.invitation.admits(one.invitation.code)
    assert "the code has expired: run `make host-token` again" in one.ended()


def test_code_is_never_sent_to_server_with_other_certificate(opened: Open) -> None:
    one, other = opened(), opened()
    with pytest.raises(HostError, match=f"has another certificate, {one.invitation.fingerprint}"):
        one.join(fingerprint=other.invitation.fingerprint)
    assert one.requests == []


def test_rejection_of_host_is_reported_on_both_sides(opened: Open) -> None:
    one = opened()
    with pytest.raises(HostError, match="rejected this host: Invalid name 'head'"):
        one.join(name="head")
    assert one.ended() == "The host could not join: Invalid name 'head'."


def test_host_that_was_not_ready_joins_with_same_code(opened: Open) -> None:
    one = opened()
    with pytest.raises(HostError, match="rejected this host: it lacks TORCH_INDEX_URL"):
        one.join(name="amd")
    one.join(name="amd")
    assert one.ended() == "amd has joined"


def post(one: Opened, body: bytes, **headers: str) -> int:
    """Send a request as no host does; return the status of the answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", one.invitation.port, timeout=5, context=context)
    with contextlib.closing(connection):
        connection.request("POST", "/join", body, {name.replace("_", "-"): text for name, text in headers.items()})
        return connection.getresponse().status


@pytest.mark.parametrize("length", ["-1", "+1", "ten", str(1 << 20)])
def test_length_is_checked_before_body_is_read(opened: Open, length: str) -> None:
    one = opened()
    assert post(one, b"", Content_Length=length) == 404
    one.join()
    assert one.ended() == "h2 has joined"


@pytest.mark.parametrize("body", [b"{", b"3", b"[1]", b"[" * 10_000, b"\xff"])
def test_invalid_request_with_right_code_ends_invitation(opened: Open, body: bytes) -> None:
    one = opened()
    assert post(one, body, Authorization=f"Bearer {one.invitation.code}") == 400
    assert one.ended() == "The host sent an invalid request: run `make host-token` and join again."


def test_silent_client_delays_nobody(opened: Open) -> None:
    one = opened()
    with socket.create_connection(("127.0.0.1", one.invitation.port)):
        one.join()
        assert one.ended() == "h2 has joined"


def test_two_codes_differ(opened: Open) -> None:
    one, other = opened(), opened()
    assert one.invitation.code != other.invitation.code
    assert len(one.invitation.code.replace("-", "")) == 12


def test_used_port_error_names_setting(opened: Open) -> None:
    one = opened()
    with pytest.raises(HostError, match=f"TCP port {one.invitation.port} cannot be used .* set HUB_PORT"):
        Invitation(one.invitation.port, one.welcome, one.send)
