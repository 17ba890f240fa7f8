"""Notebooks of people on the running stack: accounts, networks, log-in, idleness, and the shared notebook."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator

import httpx
import pytest
from figures import count
from host import Stack, run, wait_for
from persons import administer
from secret_search import leaks, of_services, shown_by
from test_networks import CONNECT
from test_security import CLOSED, refuses

from mlplatform.client.jobs import Jobs
from mlplatform_stack import notebooks
from mlplatform_stack.services import STORE

pytestmark = pytest.mark.nightly

USED = {("gateway", 8265), ("mlflow", 8000), (STORE, 9000)}

IDLE_S = 12


class Lab:
    """A person's notebook."""

    def __init__(self, stack: Stack, person: str) -> None:
        self.stack, self.person, self.service = stack, person, f"notebook-{person}"
        self.made = stack.make("notebook", f"PERSON={person}").stdout
        link = re.search(rf"http://{self.service}\.localhost:(\d+)/lab\?token=(\S+)", self.made)
        assert link, self.made
        # Browsers resolve names below localhost, Python does not.
        self.address, self.token = f"http://127.0.0.1:{link[1]}", link[2]

    def types(self, *command: str) -> str:
        """Run a command as in a terminal of the notebook; return everything that it prints."""
        done = self.stack.execute(self.service, *command, check=False)
        return done.stdout + done.stderr

    def asks(self, path: str, method: str = "GET", **headers: str) -> httpx.Response:
        token = {"Authorization": f"token {self.token}"}
        return httpx.request(method, self.address + path, headers={**token, **headers}, trust_env=False, timeout=20)

    def awake(self) -> bool:
        return self.asks("/api/status").is_success


@pytest.fixture(scope="module")
def labs(running: Stack) -> Iterator[dict[str, Lab]]:
    """Notebooks of Alice and Bob, who have not logged in; afterwards the stack has the shared one again."""
    names = {role: f"{role}-{secrets.token_hex(3)}" for role in ("alice", "bob")}
    found: dict[str, Lab] = {}
    try:
        for role, name in names.items():
            found[role] = Lab(running, name)
        yield found
    finally:
        volumes: list[str] = []
        for name in set(names.values()) & set(notebooks.read_ports(running.root)):
            removed = running.make("notebook", f"PERSON={name}", "REMOVE=1").stdout
            volumes += re.findall(r"\S+_(?:home|cache)-\S+", removed)
        running.up()
        run("docker", "volume", "rm", *volumes)
    assert running.settings.notebook_layout == "shared"
    assert running.whole()


def test_notebook_of_person_has_no_secret_of_stack(stack: Stack, labs: dict[str, Lab]) -> None:
    alice = labs["alice"]
    assert alice.types("ls", "/run/secrets").split() == ["notebook_token"]
    search = "env; cat /run/secrets/*; find /home/jovyan -type f -size -64k -exec cat {} +"
    seen = alice.types("sh", "-c", search)
    assert alice.token in seen
    others = {path.name for path in (stack.root / "secrets").iterdir() if path.is_file()}
    others.discard(notebooks.token_name(alice.person))
    values = {name: re.findall(r"[\w-]{32,}", stack.secret(name)) for name in others}
    assert sum(map(len, values.values())) > 20
    assert not [name for name, found in values.items() if any(value in seen for value in found)]


def test_notebook_of_person_opens_to_their_token_only(stack: Stack, labs: dict[str, Lab]) -> None:
    alice, served = labs["alice"], []
    wait_for(alice.awake, "JupyterLab of Alice", 120)
    for token in ("", "wrong", stack.secret("notebook_token"), labs["bob"].token):
        headers = {"Authorization": f"token {token}"} if token else {}
        with httpx.Client(base_url=alice.address, headers=headers, trust_env=False, timeout=20) as client:
            served += [path for method, path in CLOSED["notebook"] if not refuses(client.request(method, path))]
        count("requests without valid credentials", len(CLOSED["notebook"]))
    assert not served
    assert alice.asks(f"/lab?token={alice.token}").is_success
    assert not leaks(stack.root / "secrets", shown_by(of_services(stack, alice.service, "gateway")))


def test_notebook_of_person_reaches_entry_points_only(stack: Stack, labs: dict[str, Lab]) -> None:
    alice, places = labs["alice"], {}
    ports = {**dict(USED), "ray-head": 6379, "postgres": 5432, "prometheus": 9090, "notebook": 8888}
    ports |= {labs["bob"].service: 8888, "ray-worker-0": 52365, "alertmanager": 9093}
    for entry in stack.containers():
        name = entry["Config"]["Labels"]["com.docker.compose.service"]
        addresses = [net["IPAddress"] for net in entry["NetworkSettings"]["Networks"].values()]
        if name in ports:
            places |= {(host, ports[name]): (name, ports[name]) for host in (name, *filter(None, addresses))}
    assert {labs["bob"].service, "ray-head"} <= {name for name, _ in places.values()}
    connected = json.loads(alice.types("python", "-c", CONNECT, json.dumps(list(places))))
    reached = {place for place, connects in zip(places.values(), connected, strict=True) if connects}
    assert reached == {place for place in USED if stack.own_store or place[0] != STORE}


def test_person_logs_in_once_and_submits_as_themselves(stack: Stack, labs: dict[str, Lab], jobs: Jobs) -> None:
    alice, team = labs["alice"], f"vision-{secrets.token_hex(3)}"
    before = alice.types("mlplatform", "jobs", "list")
    assert "token" in before, before
    administer(stack, "teams", "add", team)
    added = administer(stack, "people", "add", alice.person, "--team", team)
    code = re.search(r"mlplatform login (\S+)", added)
    assert code
    try:
        assert f"Logged in as {alice.person}" in alice.types("mlplatform", "login", code[1])
        listing = "import boto3; print('listed', boto3.client('s3').list_objects_v2(Bucket='datasets')['KeyCount'])"
        assert "listed" in alice.types("python", "-c", listing)
        printed = alice.types("ray", "job", "submit", "--", "python", "-c", "print('from a notebook')")
        assert "succeeded" in printed, printed
        found = re.search(r"Job '(\S+)' submitted successfully", printed)
        assert found
        assert jobs.get(found[1]).user == alice.person
        # The token is in the volume, so a new container has it.
        stack.compose("up", "--detach", "--no-deps", "--no-build", "--force-recreate", "--wait", alice.service)
        assert found[1] in alice.types("mlplatform", "jobs", "list")
        logged = alice.types("python", "-c", "import mlflow; print('run', mlflow.start_run().info.run_id)")
        run_id = re.search(r"run (\w{32})", logged)
        assert run_id, logged
        with stack.mlflow as mlflow:
            tags = mlflow.get("/runs/get", params={"run_id": run_id[1]}).json()["run"]["data"]["tags"]
        assert {"key": "mlflow.user", "value": alice.person} in tags
    finally:
        administer(stack, "people", "remove", alice.person)


def test_start_ends_shared_notebook_and_connects_those_of_people(stack: Stack, labs: dict[str, Lab]) -> None:
    alice = labs["alice"]
    network = f"{stack.settings.stack_prefix}mlplatform_{alice.service}"
    run("docker", "network", "disconnect", network, stack.container("gateway"))
    health = ("curl", "--fail", "--silent", "--max-time", "5", "http://gateway:8265/platform/health")
    assert stack.execute(alice.service, *health, check=False).returncode
    status = run(str(stack.root / ".venv/bin/mlplatform"), "stack", "up", cwd=stack.root).stdout
    stack.execute(alice.service, *health)
    assert "the shared one does not run" in status
    assert f"JupyterLab of {alice.person}" in status
    running = {entry["Name"].strip("/") for entry in stack.containers() if entry["State"]["Running"]}
    assert stack.container(alice.service) in running
    assert stack.container("notebook") not in running, "a notebook with the shared token runs"


def test_idle_kernel_ends_while_terminal_stays(stack: Stack, labs: dict[str, Lab]) -> None:
    bob = labs["bob"]
    stack.set_env(NOTEBOOK_IDLE_SECONDS=f"{IDLE_S}")
    try:
        assert Lab(stack, bob.person).address == bob.address
        wait_for(bob.awake, "JupyterLab of Bob", 120)
        bob.asks("/api/kernels", "POST").raise_for_status()
        bob.asks("/api/terminals", "POST").raise_for_status()
        # `docker top` cuts lines at the width that it takes from Docker's environment.
        look = ("pgrep", "--full", "ipykernel")
        wait_for(lambda: bob.types(*look), "the kernel")
        # Polls as those of a page that was left open do not keep it; Jupyter looks once per minute.
        wait_for(lambda: bob.asks("/api/kernels").json() == [], "the end of an idle kernel", IDLE_S + 90)
        wait_for(lambda: not bob.types(*look), "the end of its process")
        assert bob.asks("/api/terminals").json(), "a terminal ended with what may run in it"
    finally:
        stack.set_env(NOTEBOOK_IDLE_SECONDS="7200")
