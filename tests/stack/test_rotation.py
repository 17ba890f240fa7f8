"""`make rotate` on the running stack, while a job trains: the job continues, and former secrets are refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from failure_training import nothing_is_lost, reports, starts, submit
from figures import count
from host import Stack, run, wait_for
from minio.credentials import StaticProvider
from minio.error import MinioAdminException
from minio.minioadmin import MinioAdmin

from mlplatform.client.jobs import Jobs
from mlplatform.credentials import read_mlflow_account, read_postgres_service, read_s3_account
from mlplatform.stack.rotation_files import GROUPS
from mlplatform.stack.secrets_folder import FILES

STEPS, PAUSE = 300, 1.0
"""The training lasts longer than a rotation; it hurries afterwards."""

ROLES = ("mlflow", "gateway", "backup")

REFUSED = ("InvalidAccessKeyId", "SignatureDoesNotMatch")

TOKENS = {"/api/jobs/": "ray_token", "/platform/logs": "log_shipper_token"}
"""Tokens of the gateway that end with a rotation of Ray, by a path that requires them."""

# Prints the roles that Postgres accepts, of those on standard input.
LOG_IN = """
import json, sys, psycopg2
for role, password in json.load(sys.stdin):
    database = {"exporter": "postgres", "backup": "gateway"}.get(role, role)
    try:
        psycopg2.connect(host="postgres", user=role, password=password, dbname=database).close()
        print(role)
    except psycopg2.OperationalError as error:
        if "password authentication failed" not in str(error):
            raise
"""


class Secrets:
    """Secrets of one moment, and what they are good for."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack, self.folder = stack, folder

    def text(self, name: str) -> str:
        return (self.folder / name).read_text().strip()

    def roles(self) -> set[str]:
        """Roles of Postgres whose passwords are accepted."""
        found = [read_postgres_service(self.folder / f"postgres_{role}") for role in ROLES]
        found += [("exporter", self.text("postgres_exporter_password")), ("postgres", self.text("postgres_password"))]
        count("log-ins with rotated secrets", len(found))
        container = self.stack.container("gateway")
        command = ("docker", "exec", "-i", container, "python", "-c", LOG_IN)
        return set(run(*command, input=json.dumps(found)).stdout.split())

    def minio_accounts(self) -> set[str]:
        """Accounts of MinIO whose keys are accepted."""
        pairs = {name: read_s3_account(self.folder / f"minio_{name}") for name in MINIO}
        pairs["root"] = (self.text("minio_root_user"), self.text("minio_root_password"))
        count("log-ins with rotated secrets", len(pairs))
        return {name for name, pair in pairs.items() if accepted_by_minio(self.stack, pair)}

    def mlflow_accounts(self) -> set[str]:
        """Accounts of MLflow whose passwords are accepted."""
        pairs = {name: read_mlflow_account(self.folder / f"mlflow_{name}") for name in MLFLOW if name != "prometheus"}
        pairs["prometheus"] = ("prometheus", self.text("mlflow_prometheus_password"))
        count("log-ins with rotated secrets", len(pairs))
        path = "/experiments/get-by-name"
        # 429 instead of 401 from the tenth failure within a minute.
        return {name for name, pair in pairs.items() if self.mlflow(pair, path).status_code not in (401, 429)}

    def mlflow(self, account: tuple[str, str], path: str, **options: Any) -> httpx.Response:
        address = f"http://127.0.0.1:{self.stack.settings.mlflow_port}/api/2.0/mlflow"
        method = "POST" if "json" in options else "GET"
        return httpx.request(method, address + path, auth=account, timeout=60, **options)

    def pages(self) -> set[str]:
        """Other secrets that are accepted."""
        settings = self.stack.settings
        base = "http://127.0.0.1"
        found = {
            "prometheus": httpx.get(
                f"{base}:{settings.prometheus_port}/api/v1/labels",
                auth=("prometheus", self.text("prometheus_password")),
            ),
            "gateway's metrics": httpx.get(
                f"{base}:{settings.ray_port}/platform/metrics",
                headers={"Authorization": f"Bearer {self.text('gateway_prometheus_token')}"},
            ),
            "minio's metrics": httpx.get(
                f"{base}:{settings.minio_port}/minio/v2/metrics/cluster",
                headers={"Authorization": f"Bearer {self.text('minio_prometheus_token')}"},
            ),
            "alertmanager": httpx.get(
                f"http://{self.stack.address('alertmanager')}:9093/metrics",
                auth=("prometheus", self.text("metrics_password")),
            ),
            "grafana": httpx.get(
                f"{base}:{settings.grafana_port}/api/user", auth=("admin", self.text("grafana_password"))
            ),
        }
        count("log-ins with rotated secrets", len(found))
        return {name for name, answer in found.items() if answer.is_success}


MINIO = ("mlflow", "gateway", "job", "attempts", "people", "person", "backup", "prometheus")
MLFLOW = ("admin", "gateway", "job", "person", "prometheus")


def accepted_by_minio(stack: Stack, pair: tuple[str, str]) -> bool:
    """Return whether MinIO knows the account; an account without rights is refused in another way."""
    admin = MinioAdmin(
        endpoint=f"127.0.0.1:{stack.settings.minio_port}", credentials=StaticProvider(*pair), secure=False
    )
    try:
        admin.user_info("nobody")
    except MinioAdminException as error:
        return not any(code in str(error) for code in REFUSED)
    return True


def copied(stack: Stack, folder: Path) -> Secrets:
    """The secrets as they are now."""
    shutil.copytree(stack.root / "secrets", folder)
    return Secrets(stack, folder)


def add_webhook(secrets: Secrets) -> str:
    """Add a webhook, whose secret MLflow encrypts; returns its id."""
    values = {
        "name": f"rotated-{uuid.uuid4().hex[:6]}",
        "url": "https://example.org/hook",
        "secret": uuid.uuid4().hex,
        "events": [{"entity": "REGISTERED_MODEL", "action": "CREATED"}],
    }
    answer = secrets.mlflow(read_mlflow_account(secrets.folder / "mlflow_admin"), "/webhooks", json=values)
    assert answer.is_success, answer.text
    return str(answer.json()["webhook"]["webhook_id"])


def add_key(secrets: Secrets) -> tuple[str, str]:
    """Make an access key of the root account, as somebody could in the console."""
    root = (secrets.text("minio_root_user"), secrets.text("minio_root_password"))
    admin = MinioAdmin(
        endpoint=f"127.0.0.1:{secrets.stack.settings.minio_port}", credentials=StaticProvider(*root), secure=False
    )
    made = json.loads(admin.add_service_account())["credentials"]
    return made["accessKey"], made["secretKey"]


@pytest.fixture
def secrets_of_before(stack: Stack, tmp_path: Path) -> Secrets:
    return copied(stack, tmp_path / "before")


@pytest.mark.nightly
def test_training_continues_while_all_secrets_change(
    stack: Stack, jobs: Jobs, secrets_of_before: Secrets, tmp_path: Path
) -> None:
    old, now = secrets_of_before, Secrets(stack, stack.root / "secrets")
    webhook, key = add_webhook(old), add_key(old)
    assert accepted_by_minio(stack, key)
    job = submit(jobs, STEPS, PAUSE)
    wait_for(lambda: len(reports(jobs, job)) > 4, "the training to report", 240)

    started = time.monotonic()
    printed = stack.make("rotate").stdout
    print(f"\nmake rotate: {time.monotonic() - started:.0f} s\n{printed}")

    rotated = {name for group in GROUPS.values() if not group.interrupts for name in group.secrets}
    unchanged = {name for name in FILES if now.text(name) == old.text(name)}
    assert unchanged == set(FILES) - rotated
    assert old.roles() == set()
    assert now.roles() == {*ROLES, "exporter", "postgres"}
    # What a running attempt started with stays valid until it ends.
    assert old.minio_accounts() == {"job"}
    assert now.minio_accounts() == {*MINIO, "root"}
    assert not accepted_by_minio(stack, key)
    assert old.mlflow_accounts() == {"job"}
    assert now.mlflow_accounts() == set(MLFLOW)
    assert old.pages() == set()
    assert now.pages() == {"prometheus", "gateway's metrics", "minio's metrics", "alertmanager", "grafana"}
    admin = read_mlflow_account(now.folder / "mlflow_admin")
    assert now.mlflow(admin, f"/webhooks/{webhook}").is_success, "MLflow cannot read the webhook's secret"
    for worker in ("ray-worker-0", "notebook"):
        seen = stack.execute(worker, "cat", "/run/secrets/minio_credentials").stdout.strip()
        assert seen == now.text("minio_job" if worker != "notebook" else "minio_person")

    nothing_is_lost(stack, jobs, job, STEPS)
    assert len(jobs.attempts(job)) == 1
    assert starts(jobs, job) == [0]
    stack.make("rotate", "ONLY=former")
    assert old.minio_accounts() == set()
    assert old.mlflow_accounts() == set()
    assert not (stack.root / "secrets" / ".rotation").exists()
    assert now.mlflow(admin, f"/webhooks/{webhook}").is_success

    wait_for(stack.whole, "the stack to be healthy")
    wait_for(
        lambda: all(target["health"] == "up" for target in stack.prometheus_targets()), "every target to be scraped"
    )
    words = [re.findall(r"[\w.$/-]{16,}", each.text(name))[-1] for name in rotated for each in (old, now)]
    logs = stack.report() + run("docker", "logs", stack.container("postgres")).stderr
    assert [word for word in words if word in printed or word in logs] == []
    job = submit(jobs, 3, 0.1)
    assert jobs.wait(job, timeout_s=240).status == "SUCCEEDED", jobs.logs(job)[-3000:]


@pytest.mark.nightly
def test_new_tokens_of_ray_restart_jobs_in_the_same_run(stack: Stack, jobs: Jobs) -> None:
    of_cluster = stack.secret("cluster_token")
    former = {path: stack.secret(name) for path, name in TOKENS.items()}
    job = submit(jobs, STEPS, PAUSE)
    wait_for(lambda: len(reports(jobs, job)) > 4, "the training to report", 240)
    stack.make("rotate", "ONLY=ray")
    for path, name in TOKENS.items():
        for token, accepted in ((former[path], False), (stack.secret(name), True)):
            answer = stack.ray.get(path, headers={"Authorization": f"Bearer {token}"})
            assert answer.is_success if accepted else answer.status_code in (401, 403), path
    assert stack.secret("cluster_token") != of_cluster
    nothing_is_lost(stack, jobs, job, STEPS)
    assert len(jobs.attempts(job)) == 2
    wait_for(stack.whole, "the stack to be healthy")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "line", ["stopping for new secrets", "MLflow: accounts have", "wrote", "MinIO: the root account"]
)
def test_killed_rotation_is_completed(stack: Stack, secrets_of_before: Secrets, line: str) -> None:
    old, now = secrets_of_before, Secrets(stack, stack.root / "secrets")
    command = [str(stack.root / ".venv/bin/mlplatform"), "stack", "rotate"]
    with subprocess.Popen(
        command, cwd=stack.root, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout
        assert any(printed.startswith(line) for printed in process.stdout)
        os.killpg(process.pid, signal.SIGKILL)
    with pytest.raises(AssertionError, match="`make rotate` completes it"):
        stack.up()
    assert "completing the interrupted rotation" in stack.make("rotate").stdout
    assert (old.roles(), old.minio_accounts(), old.mlflow_accounts(), old.pages()) == (set(), set(), set(), set())
    assert now.roles() == {*ROLES, "exporter", "postgres"}
    assert now.minio_accounts() == {*MINIO, "root"}
    assert now.mlflow_accounts() == set(MLFLOW)
    wait_for(stack.whole, "the stack to be healthy")
