"""The stack under test: a fresh copy of the checkout, started with the same make verbs that users type."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from mlplatform.errors import PlatformError
from mlplatform.secrets.credentials import read_mlflow_account, read_s3_account
from mlplatform_stack.env import client_settings
from mlplatform_stack.services import pages
from mlplatform_stack.settings import StackSettings

CHECKOUT = Path(__file__).parents[2]
SCRIPTS = CHECKOUT / "tests/scripts"

# All differences from .env.example: another prefix and other ports, so that a developer's stack may run at the same
# time; a person who is none of the containers' accounts; a GPU that each worker only declares; webhooks to a receiver
# on the stack's own network; images by their tags, under which bases.sh builds those that a machine without an image
# registry cannot pull.
ENV = {
    **dict.fromkeys(re.findall(r"^(\w+_DIGEST)=", (CHECKOUT / "compose/images.lock").read_text(), re.MULTILINE), ""),
    "STACK_PREFIX": "test-",
    "FOOD11_VOLUME": "test-food11",
    "NOTEBOOK_USER": "ada",
    "CLUSTER_NETWORK": "10.213.78",
    "WORKER_GPUS": "1",
    # Every service with a page: tests try each without credentials.
    "COMPOSE_PROFILES": ",".join(sorted({page.profile for page in pages(CHECKOUT, StackSettings.defaults())} - {""})),
    "WORKER_MEMORY": "6g",
    "WORKER_SHM": "2g",
    "RAY_HEAD_MEMORY": "3g",
    "DISK_NEEDED_GB": "5",
    "GRACE_SECONDS": "10",
    "WEBHOOK_SCHEMES": "https,http",
    "WEBHOOK_PRIVATE_ADDRESSES": "true",
    "MLFLOW_PORT": "18000",
    "S3_PORT": "19000",
    "S3_CONSOLE_PORT": "19001",
    "RAY_PORT": "18265",
    "NOTEBOOK_PORT": "18888",
    "GRAFANA_PORT": "13000",
    "PROMETHEUS_PORT": "19090",
    "HUB_PORT": "15820",
}

GRACE_S = int(ENV["GRACE_SECONDS"])

_T = TypeVar("_T")

_BUILD_STEP = re.compile(r"^(#\d+ (\[|DONE|CACHED|transferring|exporting|writing|naming).*)?\n", re.M)
"""A build's lines about steps that end well: a hundred lines, which hid the reason in CI's extract of the output."""


def run(*command: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command. If it fails and `check` is set, the error contains its output, except for the steps of builds."""
    result = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if check and result.returncode:
        output = _BUILD_STEP.sub("", f"{result.stdout}\n{result.stderr}")
        raise AssertionError(f"{' '.join(command)} exited {result.returncode}:\n{output}")
    return result


def wait_for(condition: Callable[[], _T], what: str, seconds: float = 120) -> _T:
    """Poll `condition` and return its first true value.

    Connection errors, `PlatformError` and failed assertions count as not yet true.

    Raises:
        AssertionError: `condition` was not true within `seconds`; names `what`.
    """
    deadline = time.monotonic() + seconds
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = condition()
            if last:
                return last
        except (httpx.HTTPError, PlatformError, AssertionError) as error:
            last = error
        time.sleep(0.2)
    raise AssertionError(f"timed out after {seconds} s waiting for {what}; last seen: {last}")


def notebook_of(*cells: str) -> str:
    """Return the JSON of a notebook with these cells of code."""
    empty = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    made = [{**empty, "id": f"c{number}", "source": cell} for number, cell in enumerate(cells)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    return json.dumps({"cells": made, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})


@dataclass(frozen=True)
class Trained:
    """A job that succeeded, with the log that `ray job submit` printed."""

    id: str
    log: str


class Stack:
    """A stack on this machine with its files in `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def checked_out(cls, root: Path) -> Stack:
        """Copy this checkout, with the changes of its working tree, and write the tests' `.env`."""
        files = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=CHECKOUT).stdout
        for name in filter(None, files.split("\0")):
            if (CHECKOUT / name).is_file():
                target = root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(CHECKOUT / name, target)
        stack = cls(root)
        stack.make("env")
        stack.set_env(**ENV)
        return stack

    @property
    def settings(self) -> StackSettings:
        return StackSettings.load(self.root / ".env")

    @property
    def own_store(self) -> bool:
        """True if the object store is the stack's own."""
        return not self.settings.s3_endpoint_url

    def set_env(self, **values: str) -> None:
        """Set variables in `.env`, as a user would with an editor."""
        lines = (self.root / ".env").read_text().splitlines()
        kept = [line for line in lines if line.split("=")[0] not in values]
        (self.root / ".env").write_text("\n".join(kept + [f"{key}={value}" for key, value in values.items()]) + "\n")

    @contextmanager
    def changed(self, **values: str) -> Iterator[None]:
        """Other values in `.env`, as a person edits it, until the block ends."""
        before = (self.root / ".env").read_text()
        self.set_env(**values)
        try:
            yield
        finally:
            (self.root / ".env").write_text(before)

    def make(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return run("make", *arguments, cwd=self.root, check=check)

    def up(self) -> None:
        """Start what is missing, as `make up` does once the images are built."""
        run(str(self.root / ".venv/bin/mlplatform"), "stack", "up", cwd=self.root)

    def compose(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        files = ("--env-file", ".env.example", "--env-file", ".env", "--file", "compose/compose.yaml")
        return run("docker", "compose", *files, "--profile", "*", *arguments, cwd=self.root, **options)

    @property
    def project(self) -> str:
        """Name of the stack's project, which Compose puts before those of volumes, networks and most containers."""
        return f"{self.settings.stack_prefix}mlplatform"

    def container(self, service: str) -> str:
        """Name of a service's container: one of its own where guides use it, else the one that Compose chooses."""
        if re.fullmatch(r"ray-head|ray-worker-\d+|minio|postgres|mlflow|notebook", service):
            return f"{self.settings.stack_prefix}{service}"
        return f"{self.project}-{service}-1"

    def volume(self, name: str) -> Path:
        """Folder of a volume on this host."""
        inspect = ("docker", "volume", "inspect", "--format", "{{.Mountpoint}}", f"{self.project}_{name}")
        return Path(run(*inspect).stdout.strip())

    def execute(self, service: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's container as the image's user."""
        return run("docker", "exec", self.container(service), *command, check=check)

    def write(self, service: str, path: str, text: str) -> None:
        """Write a file in a service's container."""
        shell = ("sh", "-c", f"mkdir -p $(dirname {path}) && cat >{path}")
        run("docker", "exec", "-i", self.container(service), *shell, input=text)

    def nbconvert(self, path: str, to: str = "markdown") -> str:
        """Run a copy of a notebook in its folder, headless, and return it with the cells' outputs."""
        return self.execute("notebook", "jupyter", "nbconvert", "--to", to, "--execute", "--stdout", path).stdout

    def containers(self) -> list[dict[str, Any]]:
        """Output of `docker inspect` for each container of the stack."""
        # `docker compose ps` would take half a second, in the fixture of every test: it reads all compose files first.
        project = f"label=com.docker.compose.project={self.project}"
        ids = run("docker", "ps", "--all", "--quiet", "--filter", project).stdout.split()
        return json.loads(run("docker", "inspect", *ids).stdout) if ids else []

    def by_service(self) -> dict[str, dict[str, Any]]:
        """Output of `docker inspect` for each container, by its service."""
        return {entry["Config"]["Labels"]["com.docker.compose.service"]: entry for entry in self.containers()}

    def running(self) -> dict[str, dict[str, Any]]:
        """Output of `docker inspect` for each container that runs, by its service."""
        return {service: entry for service, entry in self.by_service().items() if entry["State"]["Running"]}

    def addresses(self, service: str) -> list[str]:
        """Addresses of a service's container on its networks, at which this host reaches it."""
        networks = self.by_service()[service]["NetworkSettings"]["Networks"]
        return [network["IPAddress"] for network in networks.values()]

    def problems(self) -> list[str]:
        """Problems that `mlplatform doctor` finds."""
        found = run(str(CHECKOUT / ".venv/bin/mlplatform"), "doctor", "--json", check=False, cwd=self.root).stdout
        return [finding["problem"] for finding in json.loads(found)]

    def unhealthy(self) -> list[str]:
        """Containers that are neither healthy nor one-shots that exited with 0; a stack without containers is one."""

        def well(state: dict[str, Any]) -> bool:
            if state["Status"] == "exited":
                return state["ExitCode"] == 0
            return state["Status"] == "running" and state.get("Health", {}).get("Status", "healthy") == "healthy"

        containers = self.containers()
        return [entry["Name"] for entry in containers if not well(entry["State"])] if containers else ["the stack"]

    def whole(self) -> bool:
        """Return true, or raise an `AssertionError` that names what is missing of services, head and two workers."""
        assert not (unhealthy := self.unhealthy()), f"not healthy: {unhealthy}"
        nodes = sorted(node["hostname"] for node in self.alive_nodes())
        assert nodes == ["ray-head", "ray-worker-0", "ray-worker-1"]
        return True

    def secret(self, name: str) -> str:
        return (self.root / "secrets" / name).read_text().strip()

    # --- Clients, each with a user's account ---

    @property
    def ray(self) -> httpx.Client:
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.settings.ray_port}",
            headers={"Authorization": f"Bearer {self.secret('ray_token')}"},
            timeout=30,
        )

    @property
    def mlflow(self) -> httpx.Client:
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.settings.mlflow_port}/api/2.0/mlflow",
            auth=read_mlflow_account(self.root / "secrets" / "mlflow_person"),
            timeout=30,
        )

    @property
    def s3(self) -> Any:
        """A client of the object store's owner."""
        return self.s3_of("owner")

    def s3_of(self, role: str) -> Any:
        """A client of the object store with the account of a role."""
        import boto3

        if role == "owner" and self.own_store:
            key, secret = "root", self.secret("store_root_password")
        else:
            key, secret = read_s3_account(self.root / "secrets" / f"s3_{role}")
        return boto3.client(
            "s3",
            endpoint_url=client_settings(self.root).s3_endpoint,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            region_name="us-east-1",
        )

    def prometheus(self, query: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        return self._prometheus("query", query=query)["result"]

    def prometheus_targets(self) -> list[dict[str, Any]]:
        """Targets that Prometheus scrapes now."""
        return self._prometheus("targets", state="active")["activeTargets"]

    def _prometheus(self, path: str, **params: str) -> dict[str, Any]:
        address = f"http://127.0.0.1:{self.settings.prometheus_port}/api/v1/{path}"
        account = ("prometheus", self.secret("prometheus_password"))
        return httpx.get(address, params=params, auth=account).raise_for_status().json()["data"]

    def alive_nodes(self) -> list[dict[str, Any]]:
        """Ray's nodes whose agents have reported; a node registers some seconds before its agents run."""
        answer = self.ray.get("/nodes", params={"view": "summary"}).raise_for_status()
        nodes = answer.json()["data"]["summary"]
        return [node for node in nodes if node["raylet"]["state"] == "ALIVE" and "hostname" in node]

    def runs_of(self, job_id: str) -> list[dict[str, Any]]:
        """MLflow runs tagged with the job's id, in any experiment."""
        with self.mlflow as client:
            experiments = client.post("/experiments/search", json={"max_results": 100}).json()["experiments"]
            ids = [experiment["experiment_id"] for experiment in experiments]
            query = {"experiment_ids": ids, "filter": f"tags.`mlplatform.job_id` = '{job_id}'", "max_results": 100}
            return client.post("/runs/search", json=query).raise_for_status().json().get("runs", [])

    def history(self, found: dict[str, Any], metric: str) -> list[dict[str, Any]]:
        """Points of a run's metric."""
        query = {"run_id": found["info"]["run_id"], "metric_key": metric, "max_results": 1000}
        return self.mlflow.get("/metrics/get-history", params=query).json()["metrics"]

    def key_of_people(self) -> tuple[str, str]:
        """Name and secret of the S3 key that the gateway gives to people now."""
        with self.ray as client:
            answer = client.post("/platform/storage-credentials").raise_for_status().json()
        return answer["access_key"], answer["secret_key"]

    def objects(self, bucket: str, prefix: str = "") -> list[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    # --- Diagnosis and removal ---

    def report(self) -> str:
        """Each container's state and last lines, for the log of a failed run."""
        parts = []
        for entry in self.containers():
            name = entry["Name"].strip("/")
            state = {key: entry["State"][key] for key in ("Status", "ExitCode", "OOMKilled")}
            logs = run("docker", "logs", "--tail", "25", name, check=False)
            parts.append(f"=== {name} {state}\n{logs.stdout}{logs.stderr}")
        return "\n".join(parts)

    def remove(self) -> None:
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5", check=False)
        run("docker", "volume", "rm", "--force", ENV["FOOD11_VOLUME"], check=False)


def train(stack: Stack) -> Trained:
    """Train the main job, submitted from the notebook by `make smoke`."""
    output = stack.make("smoke").stdout
    assert "succeeded" in output, output[-3000:]
    return Trained(re.findall(r"raysubmit_\w+", output)[0], output)
