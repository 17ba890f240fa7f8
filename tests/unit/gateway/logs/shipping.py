"""A gateway that stores logs and can be killed, and a shipper that sends it files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from without_log_in import without_log_in

from mlplatform.gateway.errors import JobGoneError
from mlplatform.gateway.http.headers import ResponseHeaders
from mlplatform.gateway.http.logs import INSTANCE, of_logs
from mlplatform.gateway.logs.shipper import LogShipper
from mlplatform.gateway.logs.store import JobLogs
from mlplatform.storage.objects import FolderStore

SESSION = "session_2026-11-21_08-52-55_745928_1"
DRIVER = "job-driver-train--1-0a1b2c.log"
WORKER = f"worker-{'ab' * 28}-01000000-4711.out"
EARLY_WORKER = f"worker-{'cd' * 28}-ffffffff-4712.out"


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
        app = ResponseHeaders(without_log_in(of_logs(self.logs)), always={INSTANCE: self.logs.instance})

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


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = 30) -> None:
    """Wait for a condition, a plain or a coroutine function."""
    async with asyncio.timeout(timeout_s):
        while True:
            result = condition()
            if result if isinstance(result, bool) else await result:
                return
            await asyncio.sleep(0.02)


async def until_log(gateway: Gateway, text: str) -> None:
    async def is_it() -> bool:
        return await gateway.logs.text("train") == text

    try:
        await until(is_it)
    except TimeoutError:
        assert await gateway.logs.text("train") == text
        raise


def logs_of(root: Path, node: str = "ray-worker-0", session: str = SESSION) -> Path:
    folder = root / node / session / "logs"
    folder.mkdir(parents=True)
    return folder


def run(gateway: Gateway, root: Path, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario concurrently with a gateway and a shipper."""

    async def bounded() -> None:
        async with asyncio.timeout(90), httpx.AsyncClient(base_url=gateway.url, trust_env=False) as client:
            await gateway.start()
            shipper = asyncio.create_task(LogShipper(root, client, gateway.heartbeat).run())
            try:
                await scenario()
                assert not shipper.done(), shipper
            finally:
                shipper.cancel()
                await asyncio.gather(shipper, return_exceptions=True)
                await gateway.kill()

    asyncio.run(bounded())


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
