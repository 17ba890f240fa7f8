"""Record what a release stores, so that later versions show that they read it.

`python tests/stack/releases.py FOLDER JOB` writes `tests/fixtures/<version>.tar` from the running stack in a folder: a
backup of everything, its password, and the evidence of a main job, as users see it. Once per release, from a stack
that has nothing but what tests made.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import httpx
from host import CHECKOUT, Stack

from mlplatform.client.jobs import Jobs
from mlplatform_stack.env import checkout_version, client_settings

FIXTURES = CHECKOUT / "tests/fixtures"


def checksums(stack: Stack, bucket: str, prefix: str) -> dict[str, str]:
    """Contents of objects as a user reads them."""
    keys = stack.objects(bucket, prefix)
    bodies = {key: stack.s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}
    return {key: hashlib.sha256(body).hexdigest() for key, body in bodies.items()}


def evidence(stack: Stack, job_id: str, running: str = "") -> dict[str, Any]:
    """Run, model, artifacts, checkpoints and log of a job that has ended, as users see them.

    Artifacts include those of all other runs, but for those of a job that is running: it may write one at any time.
    """
    (found,) = stack.runs_of(job_id)
    # MLflow lists metrics, parameters and tags in the order of its tables, which a dump does not keep.
    data = {kind: sorted(entries, key=lambda entry: entry["key"]) for kind, entries in found["data"].items()}
    alias = stack.mlflow.get("/registered-models/alias", params={"name": "digits", "alias": "champion"})
    assert alias.status_code == httpx.codes.OK, alias.text
    open_runs = {run["info"]["run_id"] for run in (stack.runs_of(running) if running else [])}
    stored = checksums(stack, "mlflow-artifacts", "")
    artifacts = {key: value for key, value in stored.items() if open_runs.isdisjoint(key.split("/"))}
    checkpoints = checksums(stack, "ray", f"{job_id}/")
    assert artifacts
    assert checkpoints
    with Jobs(client_settings(stack.root)) as jobs:
        log, job = jobs.logs(job_id), jobs.get(job_id)
    return {
        "run": {**found, "data": data},
        "model": alias.json()["model_version"],
        "artifacts": artifacts,
        "checkpoints": checkpoints,
        "data sets": checksums(stack, "datasets", ""),
        "log": log,
        "status": job.status,
        "command": job.entrypoint,
    }


def record(root: Path, job_id: str) -> None:
    """Write the fixture of this version."""
    stack = Stack(root)
    # Of several parts, and without a size in the archive.
    stack.s3.put_object(Bucket="datasets", Key="zeros/large", Body=bytes(40 << 20))
    with tempfile.TemporaryDirectory() as folder:
        stack.make("backup", f"TO={folder}/backups")
        (Path(folder) / "password").write_text(stack.secret("backup_password"))
        (Path(folder) / "evidence.json").write_text(json.dumps({"job": job_id, **evidence(stack, job_id)}, indent=1))
        with tarfile.open(FIXTURES / f"{checkout_version(root)}.tar", "w") as tar:
            for name in ("backups", "password", "evidence.json"):
                tar.add(Path(folder) / name, name)


if __name__ == "__main__":
    record(Path(sys.argv[1]).resolve(), sys.argv[2])
