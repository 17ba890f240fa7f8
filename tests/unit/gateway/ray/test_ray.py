"""The gateway's interpretation of responses from Ray's head and nodes."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import TypeVar

import pytest
from command_line import Serve
from listing_head import UNIT, ListingHead

from mlplatform.errors import UnreachableError
from mlplatform_gateway.errors import RefusedError
from mlplatform_gateway.ray import head as ray
from mlplatform_gateway.ray.head import RayHead

T = TypeVar("T")


def ask(question: Callable[[RayHead], Awaitable[T]], address: str = "http://127.0.0.1:1") -> T:
    """Ask a head at an address."""

    async def asked() -> T:
        head = RayHead(address, "http://127.0.0.1:1")
        try:
            return await question(head)
        finally:
            await head.close()

    return asyncio.run(asked())


def well(agent: str) -> bool:
    return ask(lambda head: head.node_answers(agent))


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
    with pytest.raises(RefusedError):
        ask(lambda head: head.submit({"entrypoint": "true"}), serve(lambda method, path: (status, text)))


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
    with pytest.raises(expected):
        ask(lambda head: head.put_package("a.zip", 0, nothing()), serve(lambda method, path: (status, text)))


def test_dead_nodes_are_listed_with_the_time_of_death(serve: Serve) -> None:
    lost = json.loads((UNIT / "ray_listings.json").read_text())["lost"]
    (died,) = ask(lambda head: head.look(), serve(ListingHead(lost, []))).dead.values()
    assert died == datetime(2026, 11, 21, 5, 27, 31, 427_000, UTC)
