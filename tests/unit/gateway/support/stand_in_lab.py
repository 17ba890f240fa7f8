"""Stand-in for the agent of a node with a job: an SSH server whose every command starts a JupyterLab that echoes."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncssh
import uvicorn
from ray_head import BOUND_S, echo, talk
from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute
from waiting import wait_for

LAB_TOKEN = "of JupyterLab"

_ANSWER = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: ssh\r\n\r\n"

_APP = Starlette(routes=[WebSocketRoute("/{path:path}", talk), Route("/{path:path}", echo, methods=["GET", "POST"])])


class _Server(asyncssh.SSHServer):
    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return True

    def unix_connection_requested(self, dest_path: str) -> bool:
        return True


class Agent:
    """The stand-in.

    Attributes:
        commands: those of its SSH sessions.
        open_commands: those that have not ended.
    """

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.commands: list[str] = []
        self.open_commands: list[asyncssh.SSHServerProcess[str]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._path = folder / "jupyter"
        self._listener = listener
        self._lab = uvicorn.Server(uvicorn.Config(_APP, uds=str(self._path), log_level="error"))

    async def run(self) -> None:
        """Serve JupyterLab, and connections one after the other, until the end."""
        self._loop = asyncio.get_running_loop()
        accepting = asyncio.create_task(self._accept())
        await self._lab.serve()
        accepting.cancel()

    async def _accept(self) -> None:
        loop, key = asyncio.get_running_loop(), asyncssh.generate_private_key("ssh-ed25519")
        while True:
            connection, _ = await loop.sock_accept(self._listener)
            request = b""
            while not request.endswith(b"\r\n\r\n"):
                request += await loop.sock_recv(connection, 1)
            await loop.sock_sendall(connection, _ANSWER)
            await asyncssh.run_server(
                connection, server_factory=_Server, server_host_keys=[key], process_factory=self._command
            )

    async def _command(self, process: asyncssh.SSHServerProcess[str]) -> None:
        self.commands.append(process.command or "")
        self.open_commands.append(process)
        process.stdout.write(f"{json.dumps({'socket': str(self._path), 'token': LAB_TOKEN, 'pid': 1})}\n")
        try:
            await process.stdin.read()
            process.exit(0)
        finally:
            self.open_commands.remove(process)

    def end_commands(self) -> None:
        """End the sessions, as those do whose JupyterLab has ended."""
        for process in self.open_commands:
            assert self._loop
            self._loop.call_soon_threadsafe(process.exit, 0)

    @property
    def started(self) -> bool:
        """Return whether JupyterLab answers."""
        return self._lab.started

    def stop(self) -> None:
        """End it."""
        self._lab.should_exit = True


@contextmanager
def agent(folder: Path) -> Iterator[Agent]:
    """Run the stand-in."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        running = Agent(folder, listener)
        thread = threading.Thread(target=lambda: asyncio.run(running.run()), daemon=True)
        thread.start()
        wait_for(lambda: running.started, "JupyterLab")
        yield running
        running.stop()
        thread.join(BOUND_S)
