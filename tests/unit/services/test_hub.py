"""The hub's record of hosts: addresses are kept, never shared, and freed with their host."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlplatform.errors import HostError
from mlplatform.services.hub import Hub


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path, "10.0.0")


def test_each_host_gets_address_of_its_own(hub: Hub) -> None:
    assert hub.address == "10.0.0.128"
    assert hub.register("a", "key-a") == {"key": "key-a", "address": "10.0.0.129"}
    assert hub.register("b", "key-b")["address"] == "10.0.0.130"


def test_host_that_joins_again_keeps_its_address(hub: Hub) -> None:
    hub.register("a", "old")
    hub.register("b", "key-b")
    assert hub.register("a", "new") == {"key": "new", "address": "10.0.0.129"}
    assert hub.hosts()["a"]["key"] == "new"


def test_address_of_removed_host_is_free(hub: Hub) -> None:
    hub.register("a", "key-a")
    assert hub.forget("a")["key"] == "key-a"
    assert hub.hosts() == {}
    assert hub.register("c", "key-c")["address"] == "10.0.0.129"


def test_unknown_host_error_lists_those_that_have_joined(hub: Hub) -> None:
    hub.register("b", "key-b")
    with pytest.raises(HostError, match="No host 'a' has joined; those that have: b"):
        hub.forget("a")


def test_full_network_is_reported(hub: Hub) -> None:
    for number in range(126):
        hub.register(f"h{number}", "key")
    with pytest.raises(HostError, match="All 126 addresses for hosts are taken"):
        hub.register("one-more", "key")


def test_hosts_survive_restart_of_hub(hub: Hub, tmp_path: Path) -> None:
    hub.register("a", "key-a")
    assert Hub(tmp_path, "10.0.0").hosts() == hub.hosts()
