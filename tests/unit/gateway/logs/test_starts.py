"""Shipping logs of process starts from nodes to a gateway that is restarted: each line is counted once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray_head import AUTHORIZED, BOUND_S
from started_gateway import LOG, StartedGateway, line, start, starts

from mlplatform.gateway.logs import starts as logs_starts
from mlplatform.gateway.logs.starts import StartShipper

Requests = list[tuple[str, bytes]]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_starts, "_PASS_SECONDS", 0.02)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "nodes" / "ray-worker-0"
    folder.mkdir(parents=True)
    return folder / LOG


def ship(root: Path, gateway: httpx.Client, until: Callable[[Requests], Awaitable[bool]]) -> Requests:
    """Run a new shipper until a condition on its requests is true; return the requests."""
    requests: Requests = []

    async def record(request: httpx.Request) -> None:
        requests.append((request.url.raw_path.decode(), request.content))

    async def bounded() -> None:
        async with (
            asyncio.timeout(BOUND_S),
            httpx.AsyncClient(
                base_url=gateway.base_url, headers=AUTHORIZED, trust_env=False, event_hooks={"request": [record]}
            ) as client,
        ):
            shipper = asyncio.create_task(StartShipper(root, client).run())
            while not await until(requests):
                assert not shipper.done(), shipper
                await asyncio.sleep(0.02)
            shipper.cancel()

    asyncio.run(bounded())
    return requests


def counted(gateway: httpx.Client, *expected: dict[str, Any]) -> Callable[[Requests], Awaitable[bool]]:
    async def are_they(_: Requests) -> bool:
        return await asyncio.to_thread(starts, gateway) == [list(expected)]

    return are_they


def test_appended_lines_are_sent_once(started: StartedGateway, log: Path) -> None:
    async def third(_: Requests) -> bool:
        if await counted(client, start(2))(_):
            with log.open("ab") as file:
                file.write(line())
        return await counted(client, start(3))(_)

    log.write_bytes(line() * 2)
    with started.running() as client:
        requests = ship(log.parents[1], client, third)
    path = f"/platform/starts/ray-worker-0/{LOG}?offset="
    assert requests == [(f"{path}0", b""), (f"{path}0", line() * 2), (f"{path}{2 * len(line())}", line())]


def test_log_that_does_not_grow_is_not_sent(started: StartedGateway, log: Path) -> None:
    log.write_bytes(line() + line()[:10])
    other = log.parents[1] / "ray-worker-1" / LOG
    other.parent.mkdir()

    async def ten_lines_of_the_other(requests: Requests) -> bool:
        with other.open("ab") as file:
            file.write(line())
        return sum("ray-worker-1" in path for path, _ in requests) > 10

    with started.running() as client:
        requests = ship(log.parents[1], client, ten_lines_of_the_other)
    assert sum("ray-worker-0" in path for path, _ in requests) == 3


def test_restarts_of_shipper_and_gateway_count_each_line_once(started: StartedGateway, log: Path) -> None:
    for restart in range(1, 4):
        with log.open("ab") as file:
            file.write(line("because") * 1000)
        with started.running() as client:
            ship(log.parents[1], client, counted(client, start(1000 * restart, "because")))


def test_lines_wait_for_unavailable_gateway(started: StartedGateway, log: Path, closed_port: int) -> None:
    async def several(requests: Requests) -> bool:
        return len(requests) > 3

    log.write_bytes(line())
    with httpx.Client(base_url=f"http://127.0.0.1:{closed_port}") as nowhere:
        ship(log.parents[1], nowhere, several)
    with started.running() as client:
        ship(log.parents[1], client, counted(client, start(1)))


def test_lost_answer_does_not_count_twice(started: StartedGateway, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = []
    put = httpx.AsyncClient.put

    async def answer_lost(self: httpx.AsyncClient, *arguments: Any, **options: Any) -> httpx.Response:
        answer = await put(self, *arguments, **options)
        if options["content"] and not lost:
            lost.append(answer)
            raise httpx.ReadTimeout("the answer was lost")
        return answer

    async def lost_and_counted(requests: Requests) -> bool:
        return bool(lost) and await counted(client, start(1))(requests)

    monkeypatch.setattr(httpx.AsyncClient, "put", answer_lost)
    log.write_bytes(line())
    with started.running() as client:
        ship(log.parents[1], client, lost_and_counted)
        with log.open("ab") as file:
            file.write(line())
        ship(log.parents[1], client, counted(client, start(2)))


def test_log_of_restarted_node_is_sent_from_its_beginning(started: StartedGateway, log: Path) -> None:
    log.write_bytes(line() * 5)
    with started.running() as client:
        ship(log.parents[1], client, counted(client, start(5)))
        log.unlink()
        log.with_name("starts-fedcba9876543210.jsonl").write_bytes(line() * 2)
        log.with_name("starts.jsonl").write_bytes(line() * 100)
        ship(log.parents[1], client, counted(client, start(7)))


def test_rejected_log_does_not_delay_others(started: StartedGateway, log: Path) -> None:
    rejected = log.parents[1] / "a node" / LOG
    rejected.parent.mkdir()
    rejected.write_bytes(line())

    async def counted_and_later(requests: Requests) -> bool:
        with log.open("ab") as file:
            file.write(line())
        return sum("ray-worker-0" in path for path, _ in requests) > 5

    with started.running() as client:
        requests = ship(log.parents[1], client, counted_and_later)
    assert sum("a%20node" in path for path, _ in requests) == 1
