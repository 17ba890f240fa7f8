"""The main job with versitygw, an S3 server other than MinIO, and a backup from there."""

from __future__ import annotations

import secrets
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from backup_archive import archive
from host import CHECKOUT, Stack, run

from mlplatform.client.jobs import Jobs
from mlplatform.stack.env import client_settings

IMAGE, SERVER = "versity/versitygw:v1.8.0", "external-versitygw"

EXTERNAL = {
    "STACK_PREFIX": "external-",
    "CLUSTER_NETWORK": "10.213.80",
    "COMPOSE_PROFILES": "tracking,ray",
    "WORKER_LAYOUT": "host",
    "WORKER_MEMORY": "5g",
    "WARM_START": "0",
    "MLFLOW_PORT": "38000",
    "RAY_PORT": "38265",
    "HUB_PORT": "35820",
    "BUCKET_QUOTAS": "ray=1t",
}
"""A small second stack; the first one continues beside it."""


@pytest.fixture
def server() -> Iterator[tuple[str, str]]:
    """Address of an empty S3 server that containers and this host reach, and the content of its file of accounts."""
    run(str(CHECKOUT / "tests/stack/bases.sh"), IMAGE)
    bridge = run("docker", "network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}")
    address = f"{bridge.stdout.strip()}:37070"
    key, secret = "operator", secrets.token_hex(16)
    variables = ("--env", f"ROOT_ACCESS_KEY={key}", "--env", f"ROOT_SECRET_KEY={secret}")
    place = ("--network", "host", "--volume", "/data", "--name", SERVER)
    run("docker", "rm", "--force", "--volumes", SERVER, check=False)
    run("docker", "run", "--detach", *place, *variables, IMAGE, "--port", address, "posix", "/data")
    try:
        yield f"http://{address}", f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
    finally:
        run("docker", "rm", "--force", "--volumes", SERVER)


@pytest.fixture
def external(checkout: Stack, server: tuple[str, str], tmp_path: Path) -> Iterator[Stack]:
    """A second checkout with the first one's images, whose object store is the other server."""
    address, account = server
    second = Stack.checked_out(tmp_path / "external")
    second.set_env(**EXTERNAL, S3_ENDPOINT_URL=address)
    (second.root / "secrets" / "external_s3").write_text(account)
    try:
        second.make("up")
        yield second
    finally:
        second.compose("down", "--volumes", "--remove-orphans", "--timeout", "5", check=False)


# Not in CI: compiling the server and starting a second stack take four minutes on two cores.
@pytest.mark.nightly
def test_main_job_succeeds_on_another_s3_server(external: Stack, tmp_path: Path) -> None:
    assert "minio" not in {entry["Config"]["Labels"]["com.docker.compose.service"] for entry in external.containers()}
    prepared = run("docker", "logs", external.container("storage-init")).stdout
    assert "accounts, policies, versions and BUCKET_QUOTAS are left to its operator" in prepared

    with Jobs(client_settings(external.root)) as jobs:
        job_id = jobs.submit(["python", "digits.py"], CHECKOUT / "jobs", name="digits")
        done, log = jobs.wait(job_id, 300), jobs.logs(job_id)
    assert done.status == "SUCCEEDED", log[-3000:]
    (found,) = external.runs_of(job_id)
    metrics = {metric["key"]: metric["value"] for metric in found["data"]["metrics"]}
    assert metrics["test_accuracy"] >= 0.95
    run_id = found["info"]["run_id"]
    artifacts = external.objects("mlflow-artifacts")
    assert any(run_id in key and key.endswith("confusion_matrix.png") for key in artifacts)
    assert any("/models/" in key for key in artifacts), "the model is not among the artifacts"
    checkpoints = external.objects("ray", f"{job_id}/")
    assert any(key.endswith("checkpoint.ckpt") for key in checkpoints)
    assert any(job_id in key for key in external.objects("jobs", "logs/")), "the log is not in the bucket"

    external.make("backup", f"TO={tmp_path / 'backups'}")
    with tarfile.open(archive(external, tmp_path / "backups", tmp_path / "stack.tar")) as backup:
        names = set(backup.getnames())
    assert {f"objects/ray/{key}" for key in checkpoints} <= names
    assert {f"objects/mlflow-artifacts/{key}" for key in artifacts} <= names
