"""A client of JupyterLab in a job, which enters by a printed address as a browser does."""

from __future__ import annotations

import json
import socket
import ssl
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import SplitResult

import httpx
from websockets.sync.client import connect


@contextmanager
def visit(address: SplitResult, reached: str, trust: ssl.SSLContext | bool = True) -> Iterator[httpx.Client]:
    """A client with the cookie of a visit.

    Args:
        address: with its ticket.
        reached: IP address of its host, whose name only browsers resolve.
        trust: in the certificate of an address with TLS.
    """
    options = {"headers": {"Host": address.netloc}, "verify": trust, "timeout": 60}
    with httpx.Client(base_url=f"{address.scheme}://{reached}:{address.port}", **options) as browser:  # type: ignore[arg-type]
        named = {"sni_hostname": address.hostname}
        browser.event_hooks = {"request": [lambda request: request.extensions.update(named)]}
        assert browser.get("/api/contents").status_code == 403, "a stranger reads files"
        assert browser.get(f"/?{address.query}").headers["Location"] == "/lab"
        yield browser


def printed_by_cell(
    address: SplitResult, code: str, reached: str = "127.0.0.1", trust: ssl.SSLContext | None = None
) -> str:
    """Run a cell in a new kernel, with the arguments of `visit`; return what it prints."""
    header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": "", "session": uuid.uuid4().hex}
    request = {"header": {**header, "version": "5.3"}, "parent_header": {}, "metadata": {}, "channel": "shell"}
    with visit(address, reached, trust or True) as browser:
        kernel = browser.post("/api/kernels", json={"name": "python3"}).raise_for_status().json()["id"]
        cookies = {"Cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())}
        channels = f"{'wss' if trust else 'ws'}://{address.netloc}/api/kernels/{kernel}/channels"
        options = {"additional_headers": cookies, "proxy": None, "ssl": trust}
        connection = socket.create_connection((reached, address.port or 0))
        with connect(channels, sock=connection, **options) as opened:  # type: ignore[arg-type]
            opened.send(json.dumps({**request, "content": {"code": code, "silent": False}}))
            while (message := json.loads(opened.recv(60)))["msg_type"] != "stream":
                assert message["msg_type"] != "error", message
        browser.delete(f"/api/kernels/{kernel}").raise_for_status()
    return str(message["content"]["text"])
