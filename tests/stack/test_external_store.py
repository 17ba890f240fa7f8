"""The main job with versitygw, an S3 server other than MinIO, and a backup from there."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import versitygw
from backup_archive import archive
from host import CHECKOUT, Stack, run
from versitygw import ExternalStore

from mlplatform.client.jobs import Jobs
from mlplatform.credentials import read_s3_account
from mlplatform.stack.env import client_settings

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
def server() -> Iterator[ExternalStore]:
    """An empty S3 server that containers and this host reach, with an account per role."""
    with versitygw.started("external-versitygw", 37070) as store:
        yield store


@pytest.fixture
def external(checkout: Stack, server: ExternalStore, tmp_path: Path) -> Iterator[Stack]:
    """A second checkout with the first one's images, whose object store is the other server."""
    second = Stack.checked_out(tmp_path / "external")
    second.set_env(**EXTERNAL, S3_ENDPOINT_URL=server.address)
    server.write_accounts(second.root / "secrets")
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
    assert "each role's account is accepted" in prepared
    assert "rights and BUCKET_QUOTAS are left to its operator" in prepared
    assert "the bucket ray keeps no former versions" in prepared

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

    with external.ray as client:
        key = client.post("/platform/storage-credentials").json()
    assert (key["access_key"], key["secret_key"]) == read_s3_account(external.root / "secrets" / "s3_people")

    external.make("backup", f"TO={tmp_path / 'backups'}")
    with tarfile.open(archive(external, tmp_path / "backups", tmp_path / "stack.tar")) as backup:
        names = set(backup.getnames())
    assert {f"objects/ray/{key}" for key in checkpoints} <= names
    assert {f"objects/mlflow-artifacts/{key}" for key in artifacts} <= names
