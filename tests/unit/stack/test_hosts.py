"""Requests of hosts that the stack rejects, and hosts that cannot join."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from mlplatform.errors import HostError
from mlplatform.settings.stack import StackSettings
from mlplatform.stack import env, hosts, joining, openssl, sizing
from mlplatform.stack.host import Host

CHECKOUT = Path(__file__).parents[3]
GPUS = Host(memory=64 * sizing.GIB, cpus=32, accelerator="cuda", gpus=4)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with the settings and secrets of a stack."""
    shutil.copy(CHECKOUT / ".env.example", tmp_path)
    (tmp_path / "platform").mkdir()
    shutil.copy(CHECKOUT / "platform" / "pyproject.toml", tmp_path / "platform")
    env.write_env(tmp_path, GPUS)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"name": "Lab 1"}, "Invalid name 'Lab 1': use lower-case letters"),
        ({"name": "0"}, "Invalid name '0'"),
        ({"key": "none; rm"}, "'none; rm' is not a public key of WireGuard"),
        ({"version": "0.1.0"}, "Its checkout has version 0.1.0, the stack .*: check out the same one"),
    ],
)
def test_unfit_request_is_rejected_before_hub_is_asked(root: Path, changed: dict[str, str], expected: str) -> None:
    settings = StackSettings.load(root / ".env")
    request = {"name": "lab1", "key": openssl.wireguard_key()[1], "version": settings.version, **changed}
    with pytest.raises(HostError, match=expected):
        hosts.admit(root, settings, request)


def test_checkout_with_own_stack_cannot_join(root: Path) -> None:
    with pytest.raises(HostError, match=r"has a stack of its own .*: run `make join` in another clone"):
        joining.join(root, GPUS, "127.0.0.1:1", "", "", "lab1")


def test_leaving_without_having_joined_is_an_error(root: Path) -> None:
    with pytest.raises(HostError, match="has not joined a stack"):
        joining.leave(root)


def test_keys_have_form_of_wireguard() -> None:
    private, public = openssl.wireguard_key()
    assert len(base64.b64decode(private)) == len(base64.b64decode(public)) == 32
    assert openssl.wireguard_key()[0] != private


def test_profile_of_hub_is_added_once(root: Path) -> None:
    hosts._enable_profile(root / ".env")
    hosts._enable_profile(root / ".env")
    assert StackSettings.load(root / ".env").profiles.split(",").count("hosts") == 1
    assert subprocess.run(["grep", "-c", "^COMPOSE_PROFILES=", root / ".env"], capture_output=True).stdout == b"1\n"


def test_joined_host_gives_its_memory_to_one_worker() -> None:
    chosen = {choice.setting: choice.value for choice in sizing.choices_for_joined(GPUS)}
    assert chosen["WORKER_MEMORY"] == "57g"
    assert (chosen["WORKER_GPUS"], chosen["WORKER_CPUS"]) == ("4", "32")


@pytest.mark.parametrize("reply", ["No such container: hub", "container 4f0c2e is not running"])
def test_list_without_hub_names_command_that_starts_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: str
) -> None:
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(f"#!/bin/sh\necho 'Error response from daemon: {reply}' >&2\nexit 1\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(docker.parent), prepend=":")
    with pytest.raises(HostError, match="hub, which connects hosts, is not running; `make host-token` starts it"):
        hosts.joined(root)
