"""`mlplatform ssh`, as OpenSSH's client calls it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from websockets.sync.server import ServerConnection, serve


def test_gateway_that_ends_amid_a_session_is_named(tmp_path: Path) -> None:
    def end(session: ServerConnection) -> None:
        session.send(b"SSH-2.0")
        session.socket.shutdown(socket.SHUT_RDWR)

    with serve(end, "127.0.0.1", 0) as gateway:
        threading.Thread(target=gateway.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{gateway.socket.getsockname()[1]}"
        env = {**os.environ, "RAY_ADDRESS": address, "HOME": str(tmp_path)}
        command = [sys.executable, "-m", "mlplatform", "ssh", "--proxy", "train.mlplatform"]
        # Its stdin stays open: at its end, the program would end the session itself.
        with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
            assert program.wait(60) != 0
            assert program.stderr
            assert "The gateway no longer answers" in program.stderr.read()
        gateway.shutdown()
