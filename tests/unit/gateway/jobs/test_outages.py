"""Outages of services: detected, remembered and forgotten."""

import pytest
from command_line import Serve

from mlplatform_gateway.monitoring import outages as control_outages
from mlplatform_gateway.monitoring.outages import Outages


async def recent_of(addresses: dict[str, str]) -> list[str]:
    outages = Outages(addresses)
    await outages.probe()
    await outages.close()
    return outages.recent()


async def test_refused_connection_or_proxy_error_counts_as_outage(serve: Serve, closed_port: int) -> None:
    address = serve(lambda method, path: (int(path[1:]), ""))
    servers = {str(status): f"{address}/{status}" for status in (200, 500, 502, 503, 504)}
    found = await recent_of({**servers, "closed": f"http://127.0.0.1:{closed_port}"})
    assert sorted(found) == ["502", "503", "504", "closed"]


async def test_single_timeout_does_not_count_as_outage(serve: Serve) -> None:
    answers = iter((503, 200, 503, 503))
    address = serve(lambda method, path: (next(answers), ""))
    assert await recent_of({"storage": address}) == []
    assert await recent_of({"storage": address}) == ["storage"]


async def test_recovered_server_is_available_again(serve: Serve) -> None:
    answers = iter((503, 503, 200))
    outages = Outages({"storage": serve(lambda method, path: (next(answers), ""))})
    for now in (["storage"], []):
        await outages.probe()
        assert (outages.now(), outages.recent()) == (now, ["storage"])
    await outages.close()


async def test_outage_is_forgotten_after_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    outages = Outages({})
    outages.note("storage")
    assert outages.recent() == ["storage"]
    monkeypatch.setattr(control_outages, "LOOK_BACK_SECONDS", 0.0)
    assert outages.recent() == []
    await outages.close()
