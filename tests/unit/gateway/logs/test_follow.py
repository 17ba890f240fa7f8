"""Following a log across gateway crashes: a real server and client, SQLite, a folder, and two log sources."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from log_files import DRIVER, NODE, SESSION, WORKER, resolve, running, stored
from stored import database_in, submitted
from waiting import until
from without_log_in import without_log_in

from mlplatform.client.jobs import Jobs
from mlplatform.settings.job import Settings
from mlplatform.storage.objects import FolderStore
from mlplatform_gateway.jobs import api as jobs
from mlplatform_gateway.jobs.services import Services
from mlplatform_gateway.jobs.store import JobStore
from mlplatform_gateway.logs import api as job_logs
from mlplatform_gateway.logs import chunks
from mlplatform_gateway.logs.store import JobLogs
from mlplatform_gateway.ray.proxy import ReverseProxy

pytestmark = pytest.mark.timeout(90)

LINES = 30


class Platform:
    """Files of a driver and a worker, a database and a folder; they survive a crash of the gateway."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.store = JobStore(database_in(folder))
        self.files = {DRIVER: b"", WORKER: b""}
        self.objects = folder / "logs"
        self._port = port

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[JobLogs]:
        """A gateway that crashes at the end: it loses everything that is only in memory, and its connections break."""
        logs = JobLogs(FolderStore(str(self.objects)), resolve)
        unused: Any = None
        proxy = ReverseProxy("http://127.0.0.1:1")
        routers = jobs.routes(Services(self.store, *[unused] * 4), unused, unused, proxy), job_logs.routes(logs, proxy)
        app = without_log_in(*routers, jobs=self.store)
        config = uvicorn.Config(app, host="127.0.0.1", port=self._port, log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        storing, serving = asyncio.create_task(logs.run()), asyncio.create_task(server._serve())
        try:
            await until(lambda: server.started)
            yield logs
        finally:
            storing.cancel()
            server.should_exit = server.force_exit = True
            await asyncio.gather(storing, serving, return_exceptions=True)
            # Close the port only now, so that no client reconnects to this gateway.
            for connection in server.server_state.connections:
                connection.transport.abort()  # type: ignore[union-attr]
            for answering in server.server_state.tasks:
                answering.cancel()

    async def send(self, logs: JobLogs, file: str, text: str = "") -> None:
        """Append to a file, and send the part that the gateway lacks."""
        self.files[file] += text.encode()
        begin = (await logs.accept(NODE, SESSION, file, 0, 7, b"")).expected
        await logs.accept(NODE, SESSION, file, begin, 7, self.files[file][begin:])


@pytest.fixture
def platform(tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch) -> Platform:
    monkeypatch.setattr("mlplatform.client.connection.POLL_SECONDS", 0.05)
    return Platform(tmp_path, closed_port)


def follow(url: str, lines: list[str]) -> None:
    """Collect the lines that a client shows, until the end of the job."""
    with Jobs(Settings.load(ray_address=url)) as jobs:
        for line in jobs.follow("train"):
            lines.append(line)


async def test_follower_reads_stored_log_across_gateway_crash(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    follower = threading.Thread(target=follow, args=(platform.url, lines), daemon=True)

    async def before_the_crash() -> None:
        async with platform.gateway() as logs:
            follower.start()
            await platform.send(logs, DRIVER, "begin\n")
            await until(lambda: lines == ["begin"] and any(platform.objects.rglob("*.log")))
            for number in range(LINES):
                await platform.send(logs, DRIVER, f"driver {number}\n")
                await platform.send(logs, WORKER, f"worker {number}\n")
            with suppress(TimeoutError):
                await until(lambda: len(lines) > 1, 0.5)
            assert len((await logs.text("train")).splitlines()) == 1 + 2 * LINES

    await platform.store.add(submitted(submission_id="train"))
    with monkeypatch.context() as slow:
        slow.setattr(chunks, "_WRITE_SECONDS", 60.0)
        slow.setattr(chunks, "_AWAITED_SECONDS", 60.0, raising=False)
        await before_the_crash()
    async with platform.gateway() as logs:
        assert await logs.text("train") == "begin\n"
        # In another order than before.
        await platform.send(logs, WORKER)
        await platform.send(logs, DRIVER, "end\n")
        await logs.close("train")
        await platform.store.request_stop("train")
        await until(lambda: not follower.is_alive())
        assert lines == (await logs.text("train")).splitlines()
        assert len(lines) == 2 + 2 * LINES


async def test_unfinished_line_is_followed_across_gateway_crash(platform: Platform) -> None:
    texts: list[str] = []

    def follow_text() -> None:
        with Jobs(Settings.load(ray_address=platform.url)) as jobs:
            for text in jobs.follow_text("train"):
                texts.append(text)

    await platform.store.add(submitted(submission_id="train"))
    follower = threading.Thread(target=follow_text, daemon=True)
    async with platform.gateway() as logs:
        follower.start()
        await platform.send(logs, DRIVER, "begin\nload")
        await until(lambda: "".join(texts) == "begin\nload")
    async with platform.gateway() as logs:
        await platform.send(logs, DRIVER, "ing")
        await until(lambda: "".join(texts).endswith("\rloading"))
        await platform.send(logs, DRIVER, " is done\n")
        await logs.close("train")
        await platform.store.request_stop("train")
        await until(lambda: not follower.is_alive())
    lines = "".join(texts).split("\n")
    assert [line.rpartition("\r")[2] for line in lines] == ["begin", "loading is done", ""]


async def test_stored_lines_reach_follower_within_fraction_of_second(logs: JobLogs) -> None:
    await logs.note("train", "before")
    follower = logs.follow("train", stored=True)
    assert await anext(follower) == "before\n"
    started = time.monotonic()
    for number in range(5):
        await logs.note("train", f"line {number}")
        assert await anext(follower) == f"line {number}\n"
    # The store is written once per second unless someone waits for it.
    assert time.monotonic() - started < 2.5


async def test_follower_reads_all_chunks_in_order_once_they_are_stored(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(300)]
    async with running(tmp_path, chunk_bytes=100) as logs:
        follower = logs.follow("train", stored=True)
        sent, shown = iter(lines), ""
        for count in (1, 40, 3, 256):
            await logs.note("train", "\n".join(next(sent) for _ in range(count)))
            shown += await anext(follower)
            assert stored(tmp_path).startswith(shown)
        await logs.close("train")
        shown += "".join([part async for part in follower])
        assert shown.splitlines() == lines
        assert "".join([part async for part in logs.follow("train", 290, ended=True, stored=True)]) == "".join(
            f"{line}\n" for line in lines[290:]
        )


async def test_rejected_writes_do_not_hide_lines_from_followers(tmp_path: Path) -> None:
    folder, aside = tmp_path / "store", tmp_path / "aside"
    async with running(folder) as logs:
        follower = logs.follow("train", stored=True)
        await logs.note("train", "before")
        assert await anext(follower) == "before\n"
        folder.rename(aside)
        folder.write_text("a file is not a folder")
        await logs.note("train", "during")
        assert await anext(follower) == "during\n"
        folder.unlink()
        aside.rename(folder)
        await until(lambda: "during" in "".join(path.read_text() for path in folder.rglob("*.log")))
        await logs.note("train", "after")
        assert await anext(follower) == "after\n"
        await logs.close("train")
        assert [part async for part in follower] == []
