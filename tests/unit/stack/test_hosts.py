"""Hosts that join with the file of a stack, and what is rejected; and the hub's record of their addresses."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from dotenv import dotenv_values

from mlplatform.errors import HostError
from mlplatform_stack import env, sizing
from mlplatform_stack.host import Host
from mlplatform_stack.hosts import joining
from mlplatform_stack.hosts import verbs as hosts
from mlplatform_stack.hosts.hub import Hub
from mlplatform_stack.settings import StackSettings

GPUS = Host(memory=64 * sizing.GIB, cpus=32, accelerator="cuda", gpus=4)


@pytest.fixture
def root(root: Path) -> Path:
    """A checkout with the settings and secrets of a stack."""
    env.write_env(root, GPUS)
    return root


class Joining:
    """A checkout that joins the stack of `root`, up to the start of its worker."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.root = folder
        shutil.copytree(root / "platform", folder / "platform")
        self.file = folder / "join-lab1.json"
        self.content = {
            "name": "lab1",
            "version": env.checkout_version(folder),
            **{"addresses": "10.213.76.136/29", "network": "10.213.76", "hub": "localhost:51820"},
            **{"key": "private", "hub_key": "public"},
            "secrets": {secret: f"content of {secret}" for secret in hosts.SECRETS},
            "settings": {"MLFLOW_PORT": "8000"},
        }

    def join(self, host: Host = GPUS, **changed: str) -> dict[str, str | None]:
        """Join, and return the settings that were written."""
        self.file.write_text(json.dumps({**self.content, **changed}))
        assert joining.join(self.root, host, self.file) == "lab1"
        return dotenv_values(self.root / joining.FILE)


@pytest.fixture
def other(root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Joining:
    monkeypatch.setattr(joining, "start", lambda root: None)
    monkeypatch.delenv("TORCH_INDEX_URL", raising=False)
    return Joining(tmp_path_factory.mktemp("other"), root)


def test_host_joins_with_settings_and_secrets_of_file(other: Joining) -> None:
    settings = other.join()
    assert settings["NODE_NAME"] == "ray-worker-lab1"
    assert settings["HUB_ENDPOINT"] == "127.0.0.1:51820", "the link cannot resolve names"
    assert (settings["WORKER_ADDRESS"], settings["GATEWAY_ADDRESS"]) == ("10.213.76.137", "10.213.76.141")
    assert settings["MLFLOW_PORT"] == "8000"
    assert [settings[f"WORKER_{name}"] for name in ("GPUS", "CPUS", "MEMORY")] == ["4", "32", "57g"]
    secrets = other.root / "secrets"
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in secrets.iterdir()} == {*hosts.SECRETS, "link_key"}
    assert (secrets / "link_key").read_text() == "private"
    assert not other.file.exists(), "secrets are left in the file"


def test_amd_host_builds_with_index_of_its_shell(other: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_INDEX_URL", "https://rocm.example.org")
    settings = other.join(Host(memory=64 * sizing.GIB, cpus=32, accelerator="rocm", gpus=4, render_gid="992"))
    assert (settings["ACCELERATOR"], settings["RENDER_GID"]) == ("rocm", "992")
    assert settings["TORCH_INDEX_URL"] == "https://rocm.example.org"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"version": "0.1.0"}, "is for version 0.1.0, and this checkout has .*: check out the same one"),
        ({"hub": "stack.invalid:51820"}, r"address stack\.invalid has no IPv4 address \(.*\): run `make host-token`"),
    ],
)
def test_unfit_file_changes_nothing(other: Joining, changed: dict[str, str], expected: str) -> None:
    with pytest.raises(HostError, match=expected):
        other.join(**changed)
    assert other.file.exists()
    assert not joining.has_joined(other.root)
    assert not (other.root / "secrets").exists()


@pytest.mark.parametrize("text", [None, '{"name": '])
def test_missing_or_damaged_file_is_reported(other: Joining, text: str | None) -> None:
    if text:
        other.file.write_text(text)
    with pytest.raises(HostError, match=r"cannot be read .*: copy it from the stack"):
        joining.join(other.root, GPUS, other.file)


@pytest.mark.parametrize("name", ["Lab 1", "0", "", "a-"])
def test_invalid_name_is_rejected_before_hub_is_asked(root: Path, name: str) -> None:
    with pytest.raises(HostError, match=f"Invalid name '{name}': use lower-case letters"):
        hosts.invite(root, name, "192.0.2.1")


def test_checkout_with_own_stack_cannot_join(root: Path) -> None:
    with pytest.raises(HostError, match=r"has a stack of its own .*: run `make join` in another clone"):
        joining.join(root, GPUS, root / "join-lab1.json")


def test_leaving_without_having_joined_is_an_error(root: Path) -> None:
    with pytest.raises(HostError, match="has not joined a stack"):
        joining.leave(root)


def test_profile_of_hub_is_added_once(root: Path, program: Callable[[str, str], Path]) -> None:
    network = [{"Name": "mlplatform_cluster", "IPAM": {"Config": [{"Subnet": "10.213.76.0/24"}]}}]
    program("docker", f"case $2 in ls) echo 1 ;; inspect) echo '{json.dumps(network)}' ;; esac")
    for _ in range(2):
        hosts._start_hub(root, StackSettings.load(root / ".env"))
    (line,) = (line for line in (root / ".env").read_text().splitlines() if line.startswith("COMPOSE_PROFILES="))
    assert line.removeprefix("COMPOSE_PROFILES=").split(",").count("hosts") == 1


@pytest.mark.parametrize("reply", ['service "hub" is not running', 'service "hub" is not running container #1'])
def test_list_without_hub_names_command_that_starts_it(
    root: Path, program: Callable[[str, str], Path], reply: str
) -> None:
    program("docker", f"echo '{reply}' >&2\nexit 1")
    with pytest.raises(HostError, match="hub, which connects hosts, is not running; `make host-token` starts it"):
        hosts.joined(root)


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
