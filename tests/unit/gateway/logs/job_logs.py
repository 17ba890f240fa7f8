"""Job logs that are stored to a folder, and what tests of them share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mlplatform.gateway.errors import JobGoneError
from mlplatform.gateway.logs.store import JobLogs
from mlplatform.storage.objects import FolderStore

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
    logs = JobLogs(FolderStore(str(folder)), resolve, **sizes)
    writer = asyncio.create_task(logs.run())
    try:
        yield logs
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(bounded())


async def printed(logs: JobLogs, text: str, offset: int = 0, file: str = DRIVER, inode: int = 7) -> int:
    return (await logs.accept(NODE, SESSION, file, offset, inode, text.encode())).expected


def stored(folder: Path) -> str:
    """Texts of all stored chunks."""
    return "".join(path.read_text().split("\n", 1)[1] for path in sorted(folder.rglob("*.log")))
