"""JupyterLab of running jobs: one SSH connection for each that somebody uses, with a socket that leads to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import asyncssh
import httpx
from pydantic import BaseModel

from mlplatform_gateway.dev.shell import PART_BYTES, shell, until_one_ends
from mlplatform_gateway.errors import NoShellError
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.ray.head import RayHead
from mlplatform_gateway.ray.proxy import ReverseProxy

_MEMORY = "/dev/shm"  # noqa: S108 - each connection has a folder of its own

_START_SECONDS = 90.0

_TIMEOUT = httpx.Timeout(None, connect=5.0)
"""Exports and git operations of JupyterLab take minutes."""

_UNUSED_SECONDS = 60.0
"""Time without a request after which a connection ends; JupyterLab and its kernels stay with the job."""


class _Found(BaseModel):
    """Line that `mlplatform.node.lab` prints."""

    socket: str
    token: str


@dataclass
class Lab:
    """JupyterLab of a job.

    Attributes:
        path: Unix socket on which it answers here.
        token: its token.
        proxy: to it.
        users: requests that it serves.
        unused: set when nobody has used it for a while.
        end: timer that sets it.
    """

    path: str
    token: str
    proxy: ReverseProxy
    users: int = 0
    unused: asyncio.Event = field(default_factory=asyncio.Event)
    end: asyncio.TimerHandle | None = None


class Labs:
    """All of them that somebody uses, by the sequence number of the job."""

    def __init__(self, head: RayHead) -> None:
        self._head = head
        self._open: dict[int, asyncio.Future[Lab]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def of(self, job: JobRow) -> AsyncIterator[Lab]:
        """Yield the JupyterLab of a running job, which starts if need be.

        Raises:
            NoShellError: it cannot be reached, with the reason.
            UnreachableError: Ray's head or the node's agent is unavailable.
        """
        if job.sequence not in self._open:
            self._open[job.sequence] = opened = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._serve(job, opened))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        lab = await asyncio.shield(self._open[job.sequence])
        self._enter(lab)
        try:
            yield lab
        finally:
            self._leave(job.sequence, lab)

    def _enter(self, lab: Lab) -> None:
        lab.users += 1
        if lab.end:
            lab.end.cancel()

    def _leave(self, sequence: int, lab: Lab) -> None:
        def retire() -> None:
            self._forget(sequence, lab)
            lab.unused.set()

        lab.users -= 1
        if not lab.users:
            lab.end = asyncio.get_running_loop().call_later(_UNUSED_SECONDS, retire)

    def _forget(self, sequence: int, lab: Lab) -> None:
        """Let the next request connect again, unless one already has."""
        opened = self._open.get(sequence)
        if opened and opened.done() and not opened.exception() and opened.result() is lab:
            del self._open[sequence]

    async def close(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, job: JobRow, opened: asyncio.Future[Lab]) -> None:
        try:
            # In memory, so that nothing is left of it after a crash.
            with TemporaryDirectory(dir=_MEMORY, prefix="lab-") as folder:
                async with self._connected(job) as connection:
                    async with asyncio.timeout(_START_SECONDS):
                        lab, program = await _start(connection, job.id, f"{folder}/socket")
                    opened.set_result(lab)
                    await until_one_ends(program.wait_closed(), lab.unused.wait())
                    self._forget(job.sequence, lab)
                    await lab.proxy.close()
        except Exception as error:  # whoever waits for it gets it
            if not opened.done():
                del self._open[job.sequence]
                opened.set_exception(_refusal(job.id, error))

    @asynccontextmanager
    async def _connected(self, job: JobRow) -> AsyncIterator[asyncssh.SSHClientConnection]:
        key = asyncssh.generate_private_key("ssh-ed25519")
        public = " ".join(key.export_public_key().decode().split()[:2])
        async with shell(self._head, job, public) as stream:
            ours, theirs = socket.socketpair()
            reader, writer = await asyncio.open_connection(sock=ours)
            carrying = asyncio.create_task(until_one_ends(_to(stream, reader), _from(stream, writer)))
            carrying.add_done_callback(lambda _: writer.close())
            try:
                # The host key is made for each connection; what arrives there has passed Ray's agent.
                async with asyncssh.connect(
                    job.id,
                    sock=theirs,
                    config=None,
                    username="ray",
                    client_keys=[key],
                    agent_path=None,
                    known_hosts=None,
                    compression_algs=["none"],
                    keepalive_interval=15,
                ) as connection:
                    yield connection
            finally:
                carrying.cancel()
                await asyncio.gather(carrying, return_exceptions=True)


async def _start(
    connection: asyncssh.SSHClientConnection, job_id: str, path: str
) -> tuple[Lab, asyncssh.SSHClientProcess[str]]:
    """Start the JupyterLab of a connection's job, unless it runs, and forward the socket to it.

    Returns:
        With the program that ends with it.
    """
    program = await connection.create_process("exec python -m mlplatform.node.lab")
    line = await program.stdout.readline()
    if not line:
        raise NoShellError(f"JupyterLab of job {job_id} cannot be opened: {(await program.stderr.read()).strip()}")
    found = _Found.model_validate_json(line)
    await connection.forward_local_path(path, found.socket)
    proxy = ReverseProxy("http://lab", lambda: found.token, _TIMEOUT, name=f"JupyterLab of job {job_id}", path=path)
    return Lab(path, found.token, proxy), program


def _refusal(job_id: str, error: Exception) -> Exception:
    if isinstance(error, OSError | asyncssh.Error | ValueError):
        reason = str(error) or f"nothing was heard for {_START_SECONDS:g} s"
        return NoShellError(f"JupyterLab of job {job_id} cannot be opened ({reason}); try again.")
    return error


async def _to(stream: Any, reader: asyncio.StreamReader) -> None:
    while part := await reader.read(PART_BYTES):
        await stream.write(part)


async def _from(stream: Any, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await stream.read(PART_BYTES):
            writer.write(part)
            await writer.drain()
