"""An upgrade of a stack that the code of version 0.1.0 built, started and filled.

`tests/fixtures/0.1.0` has what its databases contained; this has its volumes, secrets and settings as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from host import CHECKOUT, Stack, run, train, wait_for

FIRST = "b6dea65631"
"""The commit that is called 0.1.0."""

SETTINGS = {
    "STACK_PREFIX": "first-",
    "FOOD11_VOLUME": "first-food11",
    "COMPOSE_PROFILES": "tracking,ray,notebook,monitoring",
    "WORKER_MEMORY": "6g",
    "WORKER_SHM": "2g",
    "MLFLOW_PORT": "28000",
    "MINIO_PORT": "29000",
    "MINIO_CONSOLE_PORT": "29001",
    "RAY_PORT": "28265",
    "NOTEBOOK_PORT": "28888",
    "PROMETHEUS_PORT": "29090",
}
"""Settings that 0.1.0 knows: a second stack on this machine, of services whose images can be built."""


@pytest.fixture
def first(tmp_path: Path) -> Iterator[Stack]:
    """A stack of version 0.1.0, started from a clone of this repository as its users did."""
    run("git", "clone", "--quiet", str(CHECKOUT), str(tmp_path / "first"))
    stack = Stack(tmp_path / "first")
    run("git", "checkout", "--quiet", FIRST, cwd=stack.root)
    stack.make("env")
    stack.set_env(**SETTINGS)
    run("tests/stack/bases.sh", cwd=stack.root)
    try:
        stack.make("up")
        yield stack
    finally:
        stack.compose("down", "--volumes", "--remove-orphans", "--timeout", "5", check=False)


def kept(stack: Stack, job: str) -> dict[str, object]:
    """A job, its run and its model as users see them, and a digest of each stored object."""
    (found,) = stack.runs_of(job)
    alias = stack.mlflow.get("/registered-models/alias", params={"name": "digits", "alias": "champion"})
    stored = [(bucket, key) for bucket in ("mlflow-artifacts", "ray") for key in stack.objects(bucket)]
    assert {bucket for bucket, _ in stored} == {"mlflow-artifacts", "ray"}
    return {
        "status": stack.ray.get(f"/api/jobs/{job}").raise_for_status().json()["status"],
        "log": stack.ray.get(f"/api/jobs/{job}/logs").raise_for_status().json(),
        "metrics": sorted(map(str, found["data"]["metrics"])),
        "params": sorted(map(str, found["data"]["params"])),
        "version": alias.raise_for_status().json()["model_version"]["version"],
        "stored": {place: digest(stack, *place) for place in stored},
    }


def digest(stack: Stack, bucket: str, key: str) -> str:
    return hashlib.sha256(stack.s3.get_object(Bucket=bucket, Key=key)["Body"].read()).hexdigest()


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_upgrade_from_first_version_keeps_everything(first: Stack) -> None:
    trained = train(first)
    before = kept(first, trained.id)
    run("git", "checkout", "--quiet", "-", cwd=first.root)
    first.make("upgrade", f"FROM={FIRST}")
    wait_for(first.whole, "the upgraded stack", 240)
    assert kept(first, trained.id) == before
    train(first)
