"""Outages of services: detected, remembered and forgotten."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mlplatform.gateway.control import outages as control_outages
from mlplatform.gateway.control.outages import Outages


def recent_of(addresses: dict[str, str], act: Callable[[Outages], Awaitable[None]] = Outages.probe) -> list[str]:
    async def scenario() -> list[str]:
        outages = Outages(addresses)
        await act(outages)
        await outages.close()
        return outages.recent()

    return asyncio.run(scenario())


def test_refused_connection_or_proxy_error_counts_as_outage(
    serve: Callable[[Callable[[str, str], tuple[int, str]]], str], closed_port: int
) -> None:
    address = serve(lambda method, path: (int(path[1:]), ""))
    servers = {str(status): f"{address}/{status}" for status in (200, 500, 502, 503, 504)}
    assert sorted(recent_of({**servers, "closed": f"http://127.0.0.1:{closed_port}"})) == [
        "502",
        "503",
        "504",
        "closed",
    ]


def test_single_timeout_does_not_count_as_outage(serve: Callable[[Callable[[str, str], tuple[int, str]]], str]) -> None:
    answers = iter((503, 200, 503, 503))
    address = serve(lambda method, path: (next(answers), ""))
    assert recent_of({"storage": address}) == []
    assert recent_of({"storage": address}) == ["storage"]


def test_recovered_server_is_available_again(
    serve: Callable[[Callable[[str, str], tuple[int, str]]], str],
) -> None:
    answers = iter((503, 503, 200))
    address = serve(lambda method, path: (next(answers), ""))

    async def scenario() -> list[tuple[list[str], list[str]]]:
        outages = Outages({"storage": address})
        seen = []
        for _ in range(2):
            await outages.probe()
            seen.append((outages.now(), outages.recent()))
        await outages.close()
        return seen

    assert asyncio.run(scenario()) == [(["storage"], ["storage"]), ([], ["storage"])]


def test_outage_is_forgotten_after_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def note(outages: Outages) -> None:
        outages.note("storage")

    assert recent_of({}, note) == ["storage"]
    monkeypatch.setattr(control_outages, "LOOK_BACK_SECONDS", 0.0)
    assert recent_of({}, note) == []
