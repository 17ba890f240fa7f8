"""`make prune` on a running stack: the dry run lists what is removed, and nothing that somebody needs is."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from host import Stack, wait_for

from mlplatform.client.jobs import Jobs

SECONDS = 25
"""Time for which checkpoints and deleted runs are kept here, instead of days."""

CHECKPOINT = """
import time
from pathlib import Path
from mlplatform.storage import addresses
from mlplatform.storage.filesystem import filesystem
files, folder = filesystem(addresses.checkpoint_uri("fit"))
with files.open_output_stream(folder + "/model.pt") as stream:
    stream.write(b"weights")
time.sleep({seconds})
"""

FILES = "/api/2.0/mlflow-artifacts/artifacts"

ROW = re.compile(r"^ *(?P<kind>\S.*?) {2,}(?P<count>\d+) +(?P<size>[\d.]+ \S+) *$", re.M)


@pytest.fixture
def keeps_seconds(stack: Stack) -> Iterator[None]:
    with stack.changed(CHECKPOINTS_KEEP_DAYS=f"{SECONDS / 86400:.6f}", RUNS_KEEP_DAYS=f"{SECONDS / 86400:.6f}"):
        stack.up()
        yield
    stack.up()
    for key in stack.objects("ray"):
        if key.endswith("/used"):
            stack.s3.delete_object(Bucket="ray", Key=key)


def protect_others(stack: Stack, *ours: str) -> None:
    """Write to the folders of other tests' jobs, as somebody who still uses them does; such folders are kept."""
    for folder in {key.partition("/")[0] for key in stack.objects("ray")} - set(ours):
        stack.s3.put_object(Bucket="ray", Key=f"{folder}/used", Body=b"")


def prune(stack: Stack, *arguments: str) -> dict[str, tuple[int, str]]:
    """Count and size by kind, as the table has them."""
    output = stack.make("prune", *arguments).stdout
    found = {row["kind"].strip(): (int(row["count"]), row["size"]) for row in ROW.finditer(output)}
    assert len(found) >= 4, output
    # `protect_others` adds to the former versions, each time (`test_versions.py`), and so to the sum.
    del found["checkpoints that can still be recovered"], found["all"]
    return found


def deleted_run(stack: Stack, register: str = "") -> tuple[str, str]:
    """Create a run with a file, which may be a registered model with an alias; delete the run; return id and path."""

    def call(path: str, values: dict[str, Any]) -> Any:
        with stack.mlflow as client:
            answer = client.post(f"/{path}", json=values)
        assert answer.is_success, answer.text
        return answer.json()

    # Who creates an experiment may delete its runs.
    experiment = call("experiments/create", {"name": f"prune-{uuid.uuid4().hex[:8]}"})["experiment_id"]
    run = call("runs/create", {"experiment_id": experiment})["run"]["info"]
    path = run["artifact_uri"].removeprefix("mlflow-artifacts:/").strip("/") + "/model"
    with stack.mlflow as client:
        address = f"http://127.0.0.1:{stack.settings.mlflow_port}{FILES}/{path}/data.pkl"
        assert client.put(address, content=b"weights").is_success
    if register:
        call("registered-models/create", {"name": register})
        source = f"mlflow-artifacts:/{path}"
        call("model-versions/create", {"name": register, "source": source, "run_id": run["run_id"]})
        call("registered-models/alias", {"name": register, "alias": "champion", "version": "1"})
    call("runs/update", {"run_id": run["run_id"], "status": "FINISHED", "end_time": 1})
    call("runs/delete", {"run_id": run["run_id"]})
    return run["run_id"], path


def exists(stack: Stack, run_id: str) -> bool:
    with stack.mlflow as client:
        return client.get("/runs/get", params={"run_id": run_id}).is_success


@pytest.mark.usefixtures("keeps_seconds")
@pytest.mark.nightly
def test_prune_removes_what_it_lists_and_nothing_needed(stack: Stack, jobs: Jobs, tmp_path: Path) -> None:
    submitted = []
    for seconds in (0, 600):
        folder = tmp_path / f"sleeps-{seconds}"
        folder.mkdir()
        (folder / "job.py").write_text(CHECKPOINT.format(seconds=seconds))
        submitted.append(jobs.submit("python job.py", folder, name="prune"))
    ended, still_open = submitted
    name = f"prune-{uuid.uuid4().hex[:8]}"
    registered, model = deleted_run(stack, name)
    removed, artifacts = deleted_run(stack)
    deleted = time.monotonic()
    for job_id in submitted:
        wait_for(lambda job_id=job_id: f"{job_id}/fit/model.pt" in stack.objects("ray"), "the checkpoint")
    assert jobs.wait(ended, 120).status == "SUCCEEDED"
    try:
        with stack.ray as gateway:

            def all_are_old() -> bool:
                protect_others(stack, *submitted)
                counts = [kind["count"] for kind in gateway.get("/platform/prune").json()["kinds"]]
                # Other tests may have deleted runs too.
                assert counts[1] == 1 <= counts[2], counts
                return time.monotonic() > deleted + SECONDS

            wait_for(all_are_old, "the checkpoint and the runs to be old")
        protect_others(stack, *submitted)
        planned = prune(stack)
        protect_others(stack, *submitted)
        assert prune(stack, "APPLY=1") == planned
        protect_others(stack, *submitted)
        assert not {kind: found for kind, found in prune(stack).items() if found[0]}
        assert f"{ended}/fit/model.pt" not in stack.objects("ray")
        assert not exists(stack, removed)
        assert not stack.objects("mlflow-artifacts", f"{artifacts}/")
        # What somebody needs is still there.
        assert f"{still_open}/fit/model.pt" in stack.objects("ray")
        assert exists(stack, registered), "its run is the origin of a registered model"
        assert stack.objects("mlflow-artifacts", f"{model}/")
        with stack.mlflow as client:
            alias = client.get("/registered-models/alias", params={"name": name, "alias": "champion"})
        assert alias.json()["model_version"]["version"] == "1"
        assert jobs.get(still_open).status == "RUNNING"
    finally:
        jobs.stop(still_open)
