"""Notebooks of people: the generated compose file, and the verb with a program in the place of Docker."""

import json
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_files import effective

from mlplatform.errors import HostError, SettingsError
from mlplatform_stack import declared, env, notebooks, preflight, services, sizing
from mlplatform_stack.checks.finding import Place
from mlplatform_stack.checks.running import unconnected_notebooks
from mlplatform_stack.host import Host
from mlplatform_stack.settings import StackSettings

CHECKOUT = Path(__file__).parents[3]

PORTS = {"bob": 8890, "alice": 8889}

# Answers as $STATE says, which has the running services, and the networks of each container.
DOCKER = """\
#!{python} -IS
import json, os, sys
from pathlib import Path
words, file = sys.argv[1:], Path(os.environ["STATE"])
state = json.loads(file.read_text())
if words[0] == "compose" and "up" in words:
    file.write_text(json.dumps({{**state, "origin": os.environ.get("PAGES_ORIGIN")}}))
if words[0] == "compose" and "ps" in words:
    print("\\n".join(state["running"]))
elif words[0] == "image":
    print("sha256:1" if state["built"] else "")
elif words[0] == "ps":
    print("\\n".join(state["networks"]))
elif words[0] == "inspect":
    of_service = lambda name: {{"Labels": {{"com.docker.compose.service": name}}}}
    networks = lambda name: {{"Networks": dict.fromkeys(state["networks"][name])}}
    print(json.dumps([
        {{"Id": name, "Config": of_service(name), "NetworkSettings": networks(name)}} for name in words[1:]
    ]))
elif words[:2] == ["network", "connect"]:
    state["networks"][words[-1]].append(words[-2])
    file.write_text(json.dumps(state))
elif words[:2] == ["network", "ls"]:
    print("\\n".join(sorted({{network for found in state["networks"].values() for network in found}})))
"""


class Stack:
    """A checkout with `.env` and `secrets/`, and what Docker reports of its containers."""

    def __init__(self, root: Path, state: Path) -> None:
        self.root, self._state = root, state
        self.reports()
        self.written_again()

    def reports(self, *, running: tuple[str, ...] = (), built: bool = True, **networks: list[str]) -> None:
        """Let Docker report other containers, by name with "_" for "-", from now on."""
        found = {name.replace("_", "-"): of for name, of in networks.items()}
        self._state.write_text(json.dumps({"running": running, "built": built, "networks": found}))

    @property
    def origin_of_start(self) -> str | None:
        """The origin of pages with which containers were started."""
        return json.loads(self._state.read_text()).get("origin")

    @property
    def settings(self) -> StackSettings:
        return StackSettings.load(self.root / ".env")

    def written_again(self) -> list[str]:
        return env.write_env(self.root, Host(memory=24 * sizing.GIB, cpus=8))

    def secret(self, person: str) -> Path:
        return self.root / "secrets" / f"notebook_token_{person}"


@pytest.fixture
def stack(root: Path, program: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> Stack:
    program("docker", DOCKER.format(python=sys.executable))
    monkeypatch.setenv("STATE", str(root / "state.json"))
    return Stack(root, root / "state.json")


@pytest.fixture(params=["cpu", "cuda", "rocm"])
def rendered(request: pytest.FixtureRequest, stack: Stack) -> dict[str, dict[str, Any]]:
    """The generated services of two people, with what they inherit."""
    file = stack.root / notebooks.FILE
    file.write_text(notebooks.render(request.param, PORTS))
    return {name: effective(file, name) for name in yaml.safe_load(file.read_text())["services"]}


def test_notebook_of_person_has_no_account_of_stack(rendered: dict[str, dict[str, Any]]) -> None:
    alice = rendered["notebook-alice"]
    assert [secret["source"] for secret in alice["secrets"]] == ["notebook_token_alice"]
    files = ("RAY_AUTH_TOKEN_PATH", "AWS_SHARED_CREDENTIALS_FILE", "NETRC", "COMET_CONFIG")
    volumes = dict(reversed(volume.split(":")[:2]) for volume in alice["volumes"])
    for name in files:
        assert alice["environment"][name].startswith("/home/jovyan/"), f"{name} is not kept over restarts"
    assert volumes["/home/jovyan"] == "home-alice"
    assert volumes["/cache"] == "cache-alice"
    of_stack = {value for value in map(str, alice["environment"].values()) if value.startswith("/run/secrets/")}
    assert of_stack == {"/run/secrets/notebook_token"}
    assert alice["environment"]["MLPLATFORM_USER"] == "alice"


def test_people_share_neither_network_nor_volume_nor_port(rendered: dict[str, dict[str, Any]]) -> None:
    alice, bob = rendered["notebook-alice"], rendered["notebook-bob"]
    assert (alice["networks"], bob["networks"]) == (["notebook-alice"], ["notebook-bob"])
    assert (alice["ports"], bob["ports"]) == (["127.0.0.1:8889:8888"], ["127.0.0.1:8890:8888"])
    common = set(alice["volumes"]) & set(bob["volumes"])
    assert common == {"shared:/shared", "food11:/mnt:ro"}


def test_notebook_of_person_has_limits_and_gpus_of_shared_one(rendered: dict[str, dict[str, Any]]) -> None:
    alice = rendered["notebook-alice"]
    accelerator = {"nvidia": "cuda", None: "rocm" if "devices" in alice else "cpu"}[alice.get("runtime")]
    shared = declared.inherited(CHECKOUT / "compose/notebook.yaml", "notebook", {"ACCELERATOR": accelerator})
    assert alice["extends"]["file"] == f"accelerator.{accelerator}.yaml"
    limits = ("mem_limit", "shm_size", "image", "healthcheck", "cap_drop", "security_opt", "pids_limit", "restart")
    for key in (*limits, "runtime", "devices", "group_add"):
        assert alice.get(key) == shared.get(key), key
    visible = {name for name in shared["environment"] if name.endswith("VISIBLE_DEVICES")}
    assert len(visible) == (accelerator != "cpu")
    assert all(alice["environment"][name] == shared["environment"][name] for name in visible)


def test_backups_have_files_of_people_but_not_caches(rendered: dict[str, dict[str, Any]]) -> None:
    for name, mode in (("backup", ":ro"), ("backup-timer", ":ro"), ("restore", "")):
        assert rendered[name]["volumes"] == [f"home-{person}:/volumes/home-{person}{mode}" for person in sorted(PORTS)]


def test_generated_file_declares_what_it_uses(stack: Stack) -> None:
    content = yaml.safe_load(notebooks.render("cpu", PORTS))
    assert set(content["networks"]) == {"notebook-alice", "notebook-bob"}
    assert set(content["volumes"]) == {"home-alice", "cache-alice", "home-bob", "cache-bob"}
    assert content["secrets"]["notebook_token_bob"] == {"file": "../secrets/notebook_token_bob"}


def test_first_notebook_is_written_and_waits_for_start(stack: Stack) -> None:
    link, started = notebooks.add(stack.root, "alice")
    assert not started
    port = notebooks.read_ports(stack.root)["alice"]
    assert link == f"http://notebook-alice.localhost:{port}/lab?token={stack.secret('alice').read_text()}"
    (page,) = notebooks.pages_of_people(stack.root)
    assert (page.title, page.service, page.port) == ("JupyterLab of alice", "notebook-alice", port)
    assert page.login == "token in secrets/notebook_token_alice"
    assert stat.S_IMODE(stack.secret("alice").stat().st_mode) == 0o444, "the container's user cannot read it"
    assert stack.settings.notebook_layout == "generated"
    profiles = services.profiles_of(stack.settings)
    assert "personal-notebooks" in profiles
    assert "notebook" not in profiles, "the shared notebook would start"
    assert "personal-notebooks" in services.profiles_of(stack.settings, "tracking")


def test_notebook_gets_origin_of_entrance_as_from_start(stack: Stack) -> None:
    with (stack.root / ".env").open("a") as file:
        file.write("COMPOSE_PROFILES=tracking,ray,proxy\nBIND_ADDRESS=127.0.0.2\n")
    stack.reports(running=("gateway",))
    notebooks.add(stack.root, "alice")
    assert stack.origin_of_start == "https://127.0.0.2"


def port_problems(root: Path, *starting: str) -> list[str]:
    """Problems with ports of people's notebooks."""
    found = preflight._port_problems(root, StackSettings.load(root / ".env"), starting, ())
    return [problem for problem in found if "JupyterLab of" in problem]


def test_repetition_keeps_port_and_token_unless_they_are_unusable(stack: Stack) -> None:
    first, _ = notebooks.add(stack.root, "alice")
    assert notebooks.add(stack.root, "bob")[0].split("token")[0] != first.split("token")[0]
    assert notebooks.add(stack.root, "alice")[0] == first
    port = notebooks.read_ports(stack.root)["alice"]
    with socket.create_server(("127.0.0.1", port)):
        (problem,) = port_problems(stack.root, "notebook-alice", "notebook-bob")
        assert f"Port {port} for JupyterLab of alice cannot be used" in problem
        assert "`make notebook PERSON=alice`" in problem
        assert port_problems(stack.root, "notebook", "notebook-bob") == []
        moved, _ = notebooks.add(stack.root, "alice")
    assert moved.split("token")[0] != first.split("token")[0]
    assert moved.split("token")[1] == first.split("token")[1]
    stack.secret("alice").unlink()
    assert notebooks.add(stack.root, "alice")[0].split("token")[1] != first.split("token")[1]


def test_port_is_none_of_stack_or_of_somebody_else(stack: Stack) -> None:
    with (stack.root / ".env").open("a") as file:
        file.write("NOTEBOOK_PORT=40000\nGRAFANA_PORT=40001\nHUB_PORT=40002\n")
    assert notebooks.free_port(stack.root, stack.settings, [40003]) >= 40004
    with pytest.raises(HostError, match="No port above NOTEBOOK_PORT=40000 is free"):
        notebooks.free_port(stack.root, stack.settings, range(40000, 41001))


@pytest.mark.parametrize("name", ["Alice", "a", "", "al ice", "../secrets", "alice--b", "a" * 31])
def test_name_that_nobody_can_have_is_rejected(stack: Stack, name: str) -> None:
    with pytest.raises(SettingsError, match="Invalid name of a person"):
        notebooks.add(stack.root, name)
    assert not (stack.root / notebooks.FILE).exists()


def test_missing_image_error_names_command(stack: Stack) -> None:
    stack.reports(built=False)
    with pytest.raises(HostError, match=r"The image mlplatform-\w+:.* is not built: run `make build`"):
        notebooks.add(stack.root, "alice")


def test_removal_keeps_files_and_last_one_returns_shared_notebook(stack: Stack) -> None:
    for person in ("alice", "bob"):
        notebooks.add(stack.root, person)
    assert notebooks.remove(stack.root, "alice") == ("mlplatform_home-alice", "mlplatform_cache-alice")
    assert list(notebooks.read_ports(stack.root)) == ["bob"]
    assert not stack.secret("alice").exists()
    assert stack.settings.notebook_layout == "generated"
    with pytest.raises(HostError, match="'alice' has no notebook: the stack has those of bob"):
        notebooks.remove(stack.root, "alice")
    notebooks.remove(stack.root, "bob")
    assert not (stack.root / notebooks.FILE).exists()
    assert stack.settings.notebook_layout == "shared"
    assert "notebook" in services.profiles_of(stack.settings)


def test_set_up_writes_generated_file_again_for_other_version(stack: Stack) -> None:
    notebooks.add(stack.root, "alice")
    file = stack.root / notebooks.FILE
    present = file.read_text()
    file.write_text(present.replace('"MLPLATFORM_USER": "alice"', '"OLD": "1"'))
    assert stack.written_again() == ["compose/notebook.generated.yaml again, for this version"]
    assert file.read_text() == present
    assert stack.written_again() == []
    file.unlink()
    stack.written_again()
    assert notebooks.read_ports(stack.root) == {}, "Compose would miss the file"


def test_unreadable_file_error_names_fix(stack: Stack) -> None:
    (stack.root / notebooks.FILE).write_text("services:\n  notebook-alice: {}\n")
    with pytest.raises(SettingsError, match=r"cannot be read: delete it, and run `make notebook` for each person"):
        notebooks.add(stack.root, "bob")


def test_doctor_finds_service_out_of_reach(stack: Stack) -> None:
    notebooks.add(stack.root, "alice")
    network = "mlplatform_notebook-alice"
    place = Place(stack.root)
    stack.reports(notebook_alice=[network], gateway=["mlplatform_cluster"], minio=["mlplatform_cluster", network])
    (found,) = unconnected_notebooks(place)
    assert "The notebook of alice cannot reach gateway" in found.problem
    assert found.repair
    found.repair()
    assert list(unconnected_notebooks(place)) == []
    stack.reports(gateway=["mlplatform_cluster"])
    assert list(unconnected_notebooks(place)) == [], "a notebook that is not running"
