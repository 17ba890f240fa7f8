"""Former versions of objects: what can be recovered, for how long, and what frees their space earlier."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from host import Stack

pytestmark = pytest.mark.minio

MIB = 1 << 20


@pytest.fixture
def root(stack: Stack) -> Any:
    return stack.s3


@pytest.fixture
def jobs_account(stack: Stack) -> Any:
    return stack.s3_of("jobs")


@pytest.fixture
def job() -> str:
    """Id of a job that nobody has submitted."""
    return f"versions-{uuid.uuid4().hex}"


def versions(root: Any, bucket: str, prefix: str) -> list[dict[str, Any]]:
    pages = root.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix)
    return [entry for page in pages for entry in (*page.get("Versions", []), *page.get("DeleteMarkers", []))]


def test_buckets_keep_versions_for_the_days_that_are_set(stack: Stack, root: Any) -> None:
    days = dict.fromkeys(("mlflow-artifacts", "datasets", "jobs"), stack.settings.version_days)
    days["ray"] = stack.settings.checkpoint_version_days
    for bucket, kept in days.items():
        assert root.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
        (rule,) = root.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
        assert rule["NoncurrentVersionExpiration"] == {"NoncurrentDays": kept}
        assert rule["Status"] == "Enabled"


@pytest.mark.parametrize(
    ("role", "bucket"), [("mlflow", "mlflow-artifacts"), ("people", "datasets"), ("jobs", "ray"), ("gateway", "jobs")]
)
def test_replaced_and_deleted_object_is_recovered(stack: Stack, root: Any, role: str, bucket: str) -> None:
    account, place = stack.s3_of(role), {"Bucket": bucket, "Key": f"versions/{uuid.uuid4().hex}"}
    account.put_object(**place, Body=b"weights")
    account.put_object(**place, Body=b"POISON")
    account.delete_object(**place)
    found = root.list_object_versions(Bucket=bucket, Prefix=place["Key"])
    texts = [root.get_object(**place, VersionId=version["VersionId"])["Body"].read() for version in found["Versions"]]
    assert texts == [b"POISON", b"weights"]
    (marker,) = found["DeleteMarkers"]
    root.delete_object(**place, VersionId=marker["VersionId"])
    assert account.get_object(**place)["Body"].read() == b"POISON"
    for version in found["Versions"]:
        root.delete_object(**place, VersionId=version["VersionId"])


@pytest.mark.parametrize(
    ("bucket", "role", "key", "kept"),
    [
        ("ray", "jobs", "{job}/0/checkpoint_000001/model.pt", 3),
        ("ray", "jobs", "{job}/0/checkpoint_manager_snapshot.json", 1),
        ("ray", "jobs", "{job}/0/reports/00000.jsonl", 1),
        ("ray", "jobs", "{job}/search/experiment_state-2026-11-28_10-00-00.json", 1),
        ("ray", "jobs", "{job}/search/trial_1/result.json", 1),
        ("jobs", "gateway", "logs/{job}/00000001.log", 1),
        ("jobs", "gateway", "packages/{job}", 3),
    ],
)
def test_what_is_written_every_few_seconds_has_no_versions(
    stack: Stack, root: Any, job: str, bucket: str, role: str, key: str, kept: int
) -> None:
    account, place = stack.s3_of(role), {"Bucket": bucket, "Key": key.format(job=job)}
    for number in range(3):
        account.put_object(**place, Body=str(number).encode())
    found = versions(root, bucket, place["Key"])
    assert len(found) == kept
    for version in found:
        root.delete_object(**place, VersionId=version["VersionId"])


def test_200_dropped_checkpoints_return_their_space(stack: Stack, root: Any, jobs_account: Any, job: str) -> None:
    def stored() -> int:
        """MiB of the bucket on MinIO's disk."""
        return int(stack.execute("minio", "du", "-sm", "/data/ray").stdout.split()[0])

    before = stored()
    # As a training does that keeps its last checkpoint only.
    for number in range(201):
        jobs_account.put_object(Bucket="ray", Key=f"{job}/0/checkpoint_{number:06d}/model.pt", Body=bytes(MIB))
        if number:
            jobs_account.delete_object(Bucket="ray", Key=f"{job}/0/checkpoint_{number - 1:06d}/model.pt")
    assert sum(entry.get("Size", 0) for entry in versions(root, "ray", f"{job}/")) == 201 * MIB
    assert stored() - before > 195
    assert "checkpoints that can still be recovered" in stack.make("prune").stdout

    printed = stack.make("prune", "APPLY=1").stdout
    assert "checkpoints that can still be recovered" in printed, printed
    (last,) = versions(root, "ray", f"{job}/")
    assert (last["Key"], last["IsLatest"]) == (f"{job}/0/checkpoint_000200/model.pt", True)
    assert stored() - before < 5
    root.delete_object(Bucket="ray", Key=last["Key"], VersionId=last["VersionId"])


def test_backup_leaves_versions_as_they_were(stack: Stack, root: Any, jobs_account: Any, job: str) -> None:
    stack.make("backup", "TO=-")
    place = {"Bucket": "ray", "Key": f"{job}/0/checkpoint_manager_snapshot.json"}
    for text in (b"first", b"second"):
        jobs_account.put_object(**place, Body=text)
    (only,) = versions(root, "ray", place["Key"])
    assert root.get_bucket_versioning(Bucket="ray")["Status"] == "Enabled"
    root.delete_object(**place, VersionId=only["VersionId"])
