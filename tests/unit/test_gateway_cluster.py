"""What the gateway finds out about Ray's nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import pytest

from mlplatform.gateway import cluster
from mlplatform.gateway.cluster import Head

Serve = Callable[[Callable[[str, str], tuple[int, str]]], str]


def well(agent: str) -> bool:
    async def ask() -> bool:
        head = Head("http://127.0.0.1:1", "http://127.0.0.1:1", "token")
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
def test_a_node_is_asked_twice_before_it_counts_as_gone(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, answers: Iterable[tuple[float, int]], expected: bool
) -> None:
    monkeypatch.setattr(cluster, "_HEALTH_TIMEOUTS", (0.2, 10.0))
    coming = iter(answers)

    def answer(method: str, path: str) -> tuple[int, str]:
        pause, status = next(coming)
        time.sleep(pause)
        return status, ""

    assert well(serve(answer)) is expected


def test_a_node_that_refuses_connections_is_gone(closed_port: int) -> None:
    assert not well(f"http://127.0.0.1:{closed_port}")
