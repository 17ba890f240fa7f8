"""`make rotate` on the running stack, killed while a job trains: the job continues, and former secrets are refused."""

from __future__ import annotations

import json
import random
import re
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from failure_training import submit
from figures import count
from host import Stack, run, wait_for
from killed import KILLS, Training, killed_and_repeated
from minio.credentials import StaticProvider
from minio.error import MinioAdminException
from minio.minioadmin import MinioAdmin

from mlplatform.client.jobs import Jobs
from mlplatform.secrets.credentials import read_mlflow_account, read_s3_account
from mlplatform_stack.bootstrap.minio import metrics_account
from mlplatform_stack.credential_files import read_postgres_service
from mlplatform_stack.rotation import NOT_ROTATED
from mlplatform_stack.secrets_folder import FILES, S3_ROLES

SURELY = 40
"""Seconds that every rotation takes, because Ray's nodes drain."""

ROLES = ("mlflow", "gateway", "backup")

REFUSED = ("InvalidAccessKeyId", "SignatureDoesNotMatch")

TOKENS = {"/api/jobs/": "ray_token", "/platform/logs": "log_shipper_token"}
"""Tokens of the gateway, by a path that requires them."""

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
        """Accounts of MinIO whose keys are accepted, if the stack has one."""
        pairs = {name: read_s3_account(self.folder / f"s3_{name}") for name in MINIO if name != "prometheus"}
        pairs["prometheus"] = metrics_account(self.text("store_root_password"))
        pairs["root"] = ("root", self.text("store_root_password"))
        count("log-ins with rotated secrets", len(pairs))
        return {name for name, pair in pairs.items() if self.stack.own_store and accepted_by_minio(self.stack, pair)}

    def mlflow_accounts(self) -> set[str]:
        """Accounts of MLflow whose passwords are accepted."""
        pairs = {name: read_mlflow_account(self.folder / f"mlflow_{name}") for name in MLFLOW if name != "prometheus"}
        pairs["prometheus"] = ("prometheus", self.text("metrics_password"))
        count("log-ins with rotated secrets", len(pairs))
        paths = dict.fromkeys(pairs, "api/2.0/mlflow/experiments/get-by-name") | {"prometheus": "metrics"}
        base = f"http://127.0.0.1:{self.stack.settings.mlflow_port}"
        answers = {name: httpx.get(f"{base}/{paths[name]}", auth=pair, timeout=60) for name, pair in pairs.items()}
        return {name for name, answer in answers.items() if answer.status_code != 401}

    def mlflow(self, account: tuple[str, str], path: str, **options: Any) -> httpx.Response:
        address = f"http://127.0.0.1:{self.stack.settings.mlflow_port}/api/2.0/mlflow"
        method = "POST" if "json" in options else "GET"
        return httpx.request(method, address + path, auth=account, timeout=60, **options)

    def pages(self) -> set[str]:
        """Other secrets that are accepted."""
        settings, base = self.stack.settings, "http://127.0.0.1"

        def get(address: str, secret: str, user: str = "") -> httpx.Response:
            """The answer to an account, or to a token if there is no user."""
            if user:
                return httpx.get(address, auth=(user, self.text(secret)))
            return httpx.get(address, headers={"Authorization": f"Bearer {self.text(secret)}"})

        alertmanager = f"http://{self.stack.addresses('alertmanager')[0]}:9093/metrics"
        prometheus = f"{base}:{settings.prometheus_port}/api/v1/labels"
        found = {
            "prometheus": get(prometheus, "prometheus_password", "prometheus"),
            "gateway's metrics": get(f"{base}:{settings.ray_port}/platform/metrics", "prometheus_password"),
            "alertmanager": get(alertmanager, "metrics_password", "prometheus"),
            "grafana": get(f"{base}:{settings.grafana_port}/api/user", "grafana_password", "admin"),
        }
        if self.stack.own_store:
            metrics = f"{base}:{settings.s3_port}/minio/v2/metrics/cluster"
            found["the store's metrics"] = get(metrics, "store_prometheus_token")
        count("log-ins with rotated secrets", len(found))
        return {name for name, answer in found.items() if answer.is_success}


MINIO = ("mlflow", "gateway", "jobs", "people", "backup", "prometheus")
MLFLOW = ("admin", "gateway", "job", "person", "prometheus")


def accepted_by_minio(stack: Stack, pair: tuple[str, str]) -> bool:
    """Return whether MinIO knows the account; an account without rights is refused in another way."""
    admin = MinioAdmin(endpoint=f"127.0.0.1:{stack.settings.s3_port}", credentials=StaticProvider(*pair), secure=False)
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


@pytest.fixture
def secrets_of_before(stack: Stack, tmp_path: Path) -> Secrets:
    return copied(stack, tmp_path / "before")


def all_changed(old: Secrets, now: Secrets) -> None:
    """Assert that every former secret is refused, and every new one accepted."""
    own = now.stack.own_store
    kept = set(NOT_ROTATED) | (set() if own else {f"s3_{role}" for role in S3_ROLES})
    assert {name for name in FILES if now.text(name) == old.text(name)} == kept
    assert (old.roles(), old.minio_accounts(), old.mlflow_accounts(), old.pages()) == (set(), set(), set(), set())
    assert now.roles() == {*ROLES, "exporter", "postgres"}
    assert now.minio_accounts() == ({*MINIO, "root"} if own else set())
    assert now.mlflow_accounts() == set(MLFLOW)
    pages = {"prometheus", "gateway's metrics", "alertmanager", "grafana"}
    assert now.pages() == pages | ({"the store's metrics"} if own else set())
    for path, name in TOKENS.items():
        for secrets, accepted in ((old, False), (now, True)):
            answer = now.stack.ray.get(path, headers={"Authorization": f"Bearer {secrets.text(name)}"})
            assert answer.is_success if accepted else answer.status_code in (401, 403), path
    assert not (now.folder / "next").exists()


@pytest.mark.parametrize("kills", KILLS)
def test_killed_rotations_are_completed_under_training(
    stack: Stack, jobs: Jobs, secrets_of_before: Secrets, tmp_path: Path, kills: Sequence[int]
) -> None:
    training, rng, killed = Training(stack, jobs), random.Random(42), 0  # noqa: S311 reproducible
    old = secrets_of_before

    def blocked() -> None:
        if (stack.root / "secrets" / "next").exists():
            with pytest.raises(AssertionError, match="`make rotate` completes it"):
                stack.up()

    for number, in_a_row in enumerate(kills):
        killed += killed_and_repeated(stack, rng, SURELY, "rotate", blocked, in_a_row)
        training.continues()
        all_changed(old, Secrets(stack, stack.root / "secrets"))
        old = copied(stack, tmp_path / f"after-{number}")
    assert killed > sum(kills) / 2
    training.ends()


@pytest.mark.nightly
@pytest.mark.minio
def test_new_secrets_open_what_the_former_ones_did(
    stack: Stack, jobs: Jobs, secrets_of_before: Secrets, tmp_path: Path
) -> None:
    old, now = secrets_of_before, Secrets(stack, stack.root / "secrets")
    webhook, key = add_webhook(old), stack.key_of_people()
    assert accepted_by_minio(stack, key)
    printed = stack.make("rotate").stdout
    all_changed(old, now)
    assert accepted_by_minio(stack, stack.key_of_people())
    wait_for(lambda: not accepted_by_minio(stack, key), "the key below the gateway's former account to end", 60)
    admin = read_mlflow_account(now.folder / "mlflow_admin")
    assert now.mlflow(admin, f"/webhooks/{webhook}").is_success, "MLflow cannot read the webhook's secret"
    for worker, name in (("ray-worker-0", "s3_jobs"), ("notebook", "s3_people")):
        assert stack.execute(worker, "cat", "/run/secrets/s3_credentials").stdout.strip() == now.text(name)
    wait_for(stack.whole, "the stack to be healthy")
    wait_for(
        lambda: all(target["health"] == "up" for target in stack.prometheus_targets()), "every target to be scraped"
    )
    rotated = set(FILES) - set(NOT_ROTATED)
    words = [re.findall(r"[\w.$/-]{16,}", each.text(name))[-1] for name in rotated for each in (old, now)]
    logs = stack.report() + run("docker", "logs", stack.container("postgres")).stderr
    assert [word for word in words if word in printed or word in logs] == []
    job = submit(jobs, 3, 0.1)
    assert jobs.wait(job, timeout_s=240).status == "SUCCEEDED", jobs.logs(job)[-3000:]


def test_only_what_reads_a_changed_secret_is_replaced(stack: Stack, secrets_of_before: Secrets) -> None:
    before = {entry["Name"]: entry["Id"] for entry in stack.containers()}
    stack.make("rotate", "ONLY=grafana")
    after = {entry["Name"]: entry["Id"] for entry in stack.containers()}
    assert [name for name in before if after[name] != before[name]] == [f"/{stack.container('grafana')}"]
    now = Secrets(stack, stack.root / "secrets")
    assert {name for name in FILES if now.text(name) != secrets_of_before.text(name)} == {"grafana_password"}
    assert "grafana" in now.pages()
    assert "grafana" not in secrets_of_before.pages()
