"""Logs of a job from files of nodes: a store in a folder, and a gateway that can be killed with a shipper before it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from waiting import until
from without_log_in import without_log_in

from mlplatform.storage.objects import FolderStore
from mlplatform_gateway.errors import JobGoneError
from mlplatform_gateway.http.response_headers import ResponseHeaders
from mlplatform_gateway.logs import api as logs
from mlplatform_gateway.logs.shipper import LogShipper
from mlplatform_gateway.logs.store import JobLogs

NODE, SESSION = "ray-worker-0", "session_2026-11-21_08-52-55_745928_1"
DRIVER = "job-driver-train--1-0a1b2c.log"
WORKER = f"worker-{'ab' * 28}-01000000-4711.out"
EARLY_WORKER = f"worker-{'cd' * 28}-ffffffff-4712.err"


async def resolve(ray_submission_id: str | None, ray_job_id: str | None) -> str | None:
    if ray_submission_id == "gone--1-000000":
        raise JobGoneError("The job was deleted.")
    return "train" if ray_submission_id == "train--1-0a1b2c" or ray_job_id == "01000000" else None


@asynccontextmanager
async def running(folder: Path, **sizes: int) -> AsyncIterator[JobLogs]:
    """Logs that are stored to a folder, with their writer, which stops at the end as in a crash."""
    found = JobLogs(FolderStore(str(folder)), resolve, **sizes)
    writer = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)


async def printed(logs: JobLogs, text: str, offset: int = 0, file: str = DRIVER, inode: int = 7) -> int:
    return (await logs.accept(NODE, SESSION, file, offset, inode, text.encode())).expected


def stored(folder: Path) -> str:
    """Texts of all stored chunks."""
    return "".join(path.read_text().split("\n", 1)[1] for path in sorted(folder.rglob("*.log")))


class Gateway:
    """A log server that stores to a folder; when killed, it loses everything that it has only in memory."""

    def __init__(self, folder: Path, port: int, **sizes: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.known = {"train--1-0a1b2c": "train", "01000000": "train"}
        self.requests: list[str] = []
        self.sizes = sizes
        self.heartbeat = folder.with_name("heartbeat")
        self._folder, self._port = folder, port

    async def resolve(self, ray_submission_id: str | None, ray_job_id: str | None) -> str | None:
        job_id = self.known.get(ray_submission_id or ray_job_id or "")
        if job_id == "gone":
            raise JobGoneError("The job was deleted.")
        return job_id

    async def start(self) -> None:
        self.logs = JobLogs(FolderStore(str(self._folder)), self.resolve, **self.sizes)
        self._writer = asyncio.create_task(self.logs.run())
        routes = without_log_in(logs.shipper_routes(self.logs))
        app = ResponseHeaders(routes, always={logs.INSTANCE: self.logs.instance})

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                self.requests.append(f"{scope['method']} {scope['path']}")
            await app(scope, receive, send)

        self._server = uvicorn.Server(
            uvicorn.Config(counted, host="127.0.0.1", port=self._port, log_level="error", lifespan="off")
        )
        self._task = asyncio.create_task(self._server._serve())
        await until(lambda: self._server.started)

    async def kill(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._writer.cancel()
        await asyncio.gather(self._task, self._writer, return_exceptions=True)

    async def until_log(self, text: str) -> None:
        """Wait until this is the job's log."""

        async def is_it() -> bool:
            return await self.logs.text("train") == text

        try:
            await until(is_it)
        except TimeoutError:
            assert await self.logs.text("train") == text
            raise


@asynccontextmanager
async def shipped(gateway: Gateway, root: Path) -> AsyncIterator[None]:
    """Let a gateway and a shipper of the nodes' files run."""
    await gateway.start()
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as client:
        shipper = asyncio.create_task(LogShipper(root, client, gateway.heartbeat).run())
        try:
            yield
            assert not shipper.done(), shipper
        finally:
            shipper.cancel()
            await asyncio.gather(shipper, return_exceptions=True)
            await gateway.kill()


def logs_of(root: Path, node: str = NODE, session: str = SESSION) -> Path:
    folder = root / node / session / "logs"
    folder.mkdir(parents=True)
    return folder


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
