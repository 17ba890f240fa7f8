"""Invitation of one host: a TLS server that lives until a host has joined, ten minutes at most.

The host that joins recognizes the server by the certificate's fingerprint, which `make host-token` prints, and then
sends the one-time code, as with `kubeadm join`. The answer is one line of JSON; a tar archive of images follows.
"""

from __future__ import annotations

import contextlib
import hmac
import http.client
import json
import re
import secrets
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, cast

from mlplatform.errors import HostError, PlatformError
from mlplatform.stack import openssl

SECONDS = 600.0

TRIES = 5
"""Wrong codes after which the invitation is withdrawn; a code has 60 bits."""

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32, without letters that look like others."""

_REQUEST_BYTES = 16 << 10

_STALLED_SECONDS = 60.0

Welcome = Callable[[dict[str, Any]], dict[str, Any]]
"""Registers the host that a request describes, and returns the answer for it."""

Send = Callable[[dict[str, Any], BinaryIO], None]
"""Writes the images that a host lacks."""


def new_code() -> str:
    """Return a random code in three groups of four characters."""
    return "-".join("".join(secrets.choice(_ALPHABET) for _ in range(4)) for _ in range(3))


class UnreadyError(HostError):
    """A host lacks what it needs before it can join; the code stays valid for it."""


class Invitation:
    """One open invitation.

    Args:
        port: TCP port, on all addresses; 0 picks one.
        welcome: called once, with the request of the host that has the code.
        send: called after it, with the same request.
        seconds: time until the invitation expires.
    """

    def __init__(self, port: int, welcome: Welcome, send: Send, seconds: float = SECONDS) -> None:
        self.code = new_code()
        self.joined: str | None = None
        self.error: str | None = None
        self._welcome, self._send = welcome, send
        self._lock = threading.Lock()
        self._wrong = 0
        self._used = False
        self._expires = time.monotonic() + seconds
        self._ended = threading.Event()
        with tempfile.TemporaryDirectory() as folder:
            file, self.fingerprint = openssl.certificate(Path(folder))
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(file)
        try:
            self._server = _Server(("", port), self, context)
        except OSError as error:
            raise HostError(
                f"TCP port {port} cannot be used ({error.strerror}): another `make host-token` may be waiting; stop "
                "it, or set HUB_PORT in .env to a free port."
            ) from error
        self.port = self._server.server_address[1]

    def wait(self) -> str:
        """Serve until a host has joined; return its name.

        Raises:
            HostError: the invitation expired or was withdrawn, or the host could not be registered.
        """
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
        thread.start()
        try:
            while not self._ended.wait(0.2):
                if not self._used and time.monotonic() > self._expires:
                    self.error = "No host has joined in time, and the code has expired: run `make host-token` again."
                    break
        finally:
            self._server.shutdown()
            self._server.server_close()
        if self.joined is None:
            raise HostError(self.error or "The invitation has ended.")
        return self.joined

    def admits(self, code: str) -> bool:
        """Return whether a code is the right one; accepts it once."""
        with self._lock:
            if self._used or self._wrong >= TRIES or time.monotonic() > self._expires:
                return False
            if hmac.compare_digest(_plain(code), _plain(self.code)):
                self._used = True
                return True
            self._wrong += 1
            if self._wrong >= TRIES:
                self.error = f"{TRIES} wrong codes were received, so the invitation is withdrawn: run it again."
            return False

    def answer(self, request: dict[str, Any], out: BinaryIO) -> None:
        """Register the host and write the answer, then end; a host that is not ready may come again."""
        try:
            reply = self._welcome(request)
            out.write(json.dumps(reply).encode() + b"\n")
            out.flush()
            self._send(request, out)
            self.joined = str(request.get("name"))
        except UnreadyError as error:
            out.write(json.dumps({"error": str(error)}).encode() + b"\n")
            with self._lock:
                self._used = False
        except PlatformError as error:
            out.write(json.dumps({"error": str(error)}).encode() + b"\n")
            self.error = f"The host could not join: {error}"
        except OSError as error:
            self.error = f"The connection to the host broke ({error}): run `make host-token` and `make join` again."

    def settle(self) -> None:
        """End if a connection that was just closed has decided the invitation."""
        if self.joined is not None or self.error is not None:
            self._ended.set()


def _plain(code: str) -> bytes:
    return code.strip().lower().replace("-", "").encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], invitation: Invitation, context: ssl.SSLContext) -> None:
        self.invitation = invitation
        self.context = context
        super().__init__(address, _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands in the connection's own thread, so that a silent client delays nobody."""
        request.settimeout(_STALLED_SECONDS)
        try:
            with self.context.wrap_socket(request, server_side=True) as secure:
                super().finish_request(secure, client_address)
        except OSError:
            return
        finally:
            self.invitation.settle()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: strangers may connect, and errors of a join are its own."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "mlplatform"
    sys_version = ""

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != "/join" or not re.fullmatch(r"[0-9]{1,9}", length) or int(length) > _REQUEST_BYTES:
            self.send_error(404)
            return
        # Read first: the client sends the body before it reads an answer.
        body = self.rfile.read(int(length))
        code = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not self.server.invitation.admits(code):
            self.send_error(403)
            return
        try:
            request = dict(json.loads(body))
        except (ValueError, TypeError, RecursionError):
            self.server.invitation.error = "The host sent an invalid request: run `make host-token` and join again."
            self.send_error(400)
            return
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.server.invitation.answer(request, cast("BinaryIO", self.wfile))

    def log_message(self, *args: Any) -> None:
        """Print nothing, as for errors."""


def request_join(
    host: str, fingerprint: str, code: str, request: dict[str, Any], receive: Callable[[dict[str, Any], BinaryIO], None]
) -> None:
    """Join: send the code and a request to the server with this certificate, and pass on its answer.

    Args:
        host: "address:port".
        fingerprint: SHA-256 of the server's certificate.
        code: the one-time code.
        request: describes this host.
        receive: takes the answer and the images that follow it.

    Raises:
        HostError: the server is unreachable, is another one, or rejects the request.
    """
    address, _, port = host.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The certificate is recognized by its fingerprint instead of an authority.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        connection = http.client.HTTPSConnection(address, int(port), timeout=_STALLED_SECONDS, context=context)
        connection.connect()
        with contextlib.closing(connection):
            found = openssl.fingerprint(connection.sock.getpeercert(binary_form=True) or b"")
            if not hmac.compare_digest(found, fingerprint.lower()):
                raise HostError(
                    f"The server at {host} has another certificate, {found}: copy the line that `make host-token` "
                    "prints again; if it is the same, somebody else answers at this address."
                )
            connection.request("POST", "/join", json.dumps(request), {"Authorization": f"Bearer {code.strip()}"})
            _take(connection.getresponse(), host, receive)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise HostError(
            f"No invitation is open at {host} ({error}): run `make host-token` there, and let its firewall accept TCP "
            "and UDP on that port."
        ) from error


def _take(answer: http.client.HTTPResponse, host: str, receive: Callable[[dict[str, Any], BinaryIO], None]) -> None:
    if answer.status != 200:
        raise HostError(f"The stack at {host} rejected the code: it is wrong, was used or has expired.")
    reply = json.loads(answer.readline())
    if "error" in reply:
        raise HostError(f"The stack at {host} rejected this host: {reply['error']}")
    receive(reply, answer)
