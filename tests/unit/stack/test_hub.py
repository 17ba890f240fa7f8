"""The hub's record of hosts: addresses are kept, never shared, and freed with their host."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlplatform.errors import HostError
from mlplatform_stack.hosts.hub import Hub


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path, "10.0.0")


def test_each_host_gets_addresses_of_its_own(hub: Hub) -> None:
    assert hub.address == "10.0.0.128"
    assert hub.register("a", "key-a") == {"key": "key-a", "addresses": "10.0.0.136/29"}
    assert hub.register("b", "key-b")["addresses"] == "10.0.0.144/29"


def test_addresses_are_kept_and_freed_with_their_host(hub: Hub, tmp_path: Path) -> None:
    hub.register("a", "old")
    hub.register("b", "key-b")
    assert hub.register("a", "new") == {"key": "new", "addresses": "10.0.0.136/29"}
    assert Hub(tmp_path, "10.0.0").hosts()["a"] == hub.hosts()["a"] == {"key": "new", "addresses": "10.0.0.136/29"}
    assert hub.forget("a")["key"] == "new"
    assert list(hub.hosts()) == ["b"]
    assert hub.register("c", "key-c")["addresses"] == "10.0.0.136/29"


def test_unknown_host_error_lists_those_that_have_joined(hub: Hub) -> None:
    hub.register("b", "key-b")
    with pytest.raises(HostError, match="No host 'a' has joined; those that have: b"):
        hub.forget("a")


def test_full_network_is_reported(hub: Hub) -> None:
    for number in range(15):
        hub.register(f"h{number}", "key")
    with pytest.raises(HostError, match="15 hosts have joined, and no more can"):
        hub.register("one-more", "key")
