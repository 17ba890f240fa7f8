"""`mlplatform ssh`, as OpenSSH's client calls it."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from command_line import refusal
from websockets.sync.server import ServerConnection, serve


def test_gateway_that_ends_amid_a_session_is_named(tmp_path: Path) -> None:
    def end(session: ServerConnection) -> None:
        session.send(b"SSH-2.0")
        session.socket.shutdown(socket.SHUT_RDWR)

    with serve(end, "127.0.0.1", 0) as gateway:
        threading.Thread(target=gateway.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{gateway.socket.getsockname()[1]}"
        text, status = refusal("ssh", "--proxy", "train.mlplatform", RAY_ADDRESS=address, HOME=str(tmp_path))
        gateway.shutdown()
    assert "The gateway no longer answers" in text
    assert status != 0
