"""JupyterLab of running jobs: one SSH connection for each that somebody uses, with a socket that leads to it."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import asyncssh

from mlplatform_gateway.dev.shell import PART_BYTES, shell, until_one_ends
from mlplatform_gateway.errors import NoShellError
from mlplatform_gateway.jobs.schema import JobRow
from mlplatform_gateway.ray.head import RayHead
from mlplatform_gateway.ray.proxy import ReverseProxy

_UNUSED_SECONDS = 60.0
"""Time without a request after which a connection ends; JupyterLab and its kernels stay with the job."""


@dataclass
class Lab:
    """JupyterLab of a job.

    Attributes:
        path: Unix socket on which it answers here.
        token: its token.
        proxy: to it.
        users: requests that it serves.
        unused: set when nobody has used it for a while.
    """

    path: str
    token: str
    proxy: ReverseProxy
    users: int = 0
    unused: asyncio.Event = field(default_factory=asyncio.Event)
    _end: asyncio.TimerHandle | None = None

    def enter(self) -> None:
        """Count a request that begins."""
        self.users += 1
        if self._end:
            self._end.cancel()

    def leave(self) -> None:
        """Count the end of a request."""
        self.users -= 1
        if not self.users:
            self._end = asyncio.get_running_loop().call_later(_UNUSED_SECONDS, self.unused.set)


class Labs:
    """All of them that somebody uses."""

    def __init__(self, head: RayHead) -> None:
        self._head = head
        self._open: dict[int, asyncio.Future[Lab]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def of(self, job: JobRow, base: str) -> AsyncIterator[Lab]:
        """Yield the JupyterLab of a running job, which starts if need be.

        Args:
            base: path of its pages, from slash to slash, the same in all calls for a job.

        Raises:
            NoShellError: it cannot be reached, with the reason.
            UnreachableError: Ray's head or the node's agent is unavailable.
        """
        if job.sequence not in self._open:
            self._open[job.sequence] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._serve(job, base))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        lab = await asyncio.shield(self._open[job.sequence])
        lab.enter()
        try:
            yield lab
        finally:
            lab.leave()

    async def close(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, job: JobRow, base: str) -> None:
        opened = self._open[job.sequence]
        try:
            async with self._connected(job) as connection:
                with TemporaryDirectory(prefix="lab-") as folder:
                    lab = await _start(connection, job.id, base, f"{folder}/socket")
                    opened.set_result(lab)
                    await until_one_ends(connection.wait_closed(), lab.unused.wait())
                    del self._open[job.sequence]
                    await lab.proxy.close()
        except Exception as error:  # whoever waits for it gets it
            if not opened.done():
                opened.set_exception(_refusal(job.id, error))
        finally:
            self._open.pop(job.sequence, None)
            opened.cancel()

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


async def _start(connection: asyncssh.SSHClientConnection, job_id: str, base: str, path: str) -> Lab:
    """Start the JupyterLab of a connection's job, unless it runs, and forward the socket to it."""
    program = await connection.create_process(f"exec python -m mlplatform.node.lab {shlex.quote(base)}")
    line = await program.stdout.readline()
    if not line:
        raise NoShellError(f"JupyterLab of job {job_id} cannot be opened: {(await program.stderr.read()).strip()}")
    found = json.loads(line)
    await connection.forward_local_path(path, found["socket"])
    proxy = ReverseProxy("http://lab", lambda: found["token"], name=f"JupyterLab of job {job_id}", path=path)
    return Lab(path, found["token"], proxy)


def _refusal(job_id: str, error: Exception) -> Exception:
    if isinstance(error, OSError | asyncssh.Error | ValueError):
        return NoShellError(f"JupyterLab of job {job_id} cannot be opened ({error}); try again.")
    return error


async def _to(stream: Any, reader: asyncio.StreamReader) -> None:
    while part := await reader.read(PART_BYTES):
        await stream.write(part)


async def _from(stream: Any, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await stream.read(PART_BYTES):
            writer.write(part)
            await writer.drain()
