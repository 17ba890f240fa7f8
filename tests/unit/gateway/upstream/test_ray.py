"""The gateway's interpretation of responses from Ray's head and nodes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mlplatform.errors import UnreachableError
from mlplatform.gateway.errors import RefusedError
from mlplatform.gateway.upstream import ray
from mlplatform.gateway.upstream.ray import RayHead

Serve = Callable[[Callable[[str, str], tuple[int, str]]], str]


def well(agent: str) -> bool:
    async def ask() -> bool:
        head = RayHead("http://127.0.0.1:1", "http://127.0.0.1:1")
        try:
            return await head.node_answers(agent)
        finally:
            await head.close()

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("answers", "expected"),
    [([(0, 200)], True), ([(0.5, 200), (0, 200)], True), ([(0, 503), (0, 200)], True), ([(0, 503), (0, 503)], False)],
    ids=["answers", "late once", "unwell once", "unwell"],
)
def test_node_is_gone_after_two_failed_requests(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, answers: Iterable[tuple[float, int]], expected: bool
) -> None:
    monkeypatch.setattr(ray, "_HEALTH_TIMEOUTS", (0.2, 10.0))
    coming = iter(answers)

    def answer(method: str, path: str) -> tuple[int, str]:
        pause, status = next(coming)
        time.sleep(pause)
        return status, ""

    assert well(serve(answer)) is expected


def test_node_refusing_connections_is_gone(closed_port: int) -> None:
    assert not well(f"http://127.0.0.1:{closed_port}")


async def nothing() -> AsyncIterator[bytes]:
    yield b""


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, "no such field"),
        (413, "too large"),
        (500, "RuntimeError: Request failed with status code 400: bad"),
        (500, "aiohttp.web_exceptions.HTTPRequestEntityTooLarge: Maximum request body size 1048576 exceeded."),
    ],
)
def test_permanent_ray_rejection_is_not_retried(serve: Serve, status: int, text: str) -> None:
    async def submit() -> None:
        head = RayHead(serve(lambda method, path: (status, text)), "http://127.0.0.1:1")
        try:
            await head.submit({"entrypoint": "true"})
        finally:
            await head.close()

    with pytest.raises(RefusedError):
        asyncio.run(submit())


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (413, "", RefusedError),
        (500, "Maximum request body size 104857600 exceeded, actual body size 104857601", RefusedError),
        (500, "the head starts", UnreachableError),
    ],
)
def test_package_too_large_for_ray_is_not_reuploaded(
    serve: Serve, status: int, text: str, expected: type[Exception]
) -> None:
    async def bring() -> None:
        head = RayHead(serve(lambda method, path: (status, text)), "http://127.0.0.1:1")
        try:
            await head.put_package("a.zip", 0, nothing())
        finally:
            await head.close()

    with pytest.raises(expected):
        asyncio.run(bring())


def test_dead_nodes_are_listed_with_the_time_of_death(serve: Serve) -> None:
    lost = json.loads((Path(__file__).parents[2] / "ray_listings.json").read_text())["lost"]
    answers = {
        "/api/jobs/": [],
        "/api/v0/nodes": {"data": {"result": {"result": lost["shapes"]}}},
        "/nodes": {"data": lost["summary"]},
    }

    async def dead() -> dict[str, datetime]:
        head = RayHead(serve(lambda method, path: (200, json.dumps(answers[path.partition("?")[0]]))), "http://none")
        try:
            return dict((await head.look()).dead)
        finally:
            await head.close()

    (died,) = asyncio.run(dead()).values()
    assert died == datetime(2026, 11, 21, 5, 27, 31, 427_000, UTC)
