"""Results of a job: curves of its runs at MLflow, its models and its checkpoints, through a whole gateway."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from command_line import Serve
from started_gateway import StartedGateway

from mlplatform_gateway.jobs.housekeeping import JobRuns

API = "/api/2.0/mlflow"

NAMES = ["accuracy", "val_loss", "system/cpu", "train_loss"]


def run_named(run_id: str, stage: str = "active") -> dict[str, Any]:
    info = {"run_id": run_id, "run_name": f"name of {run_id}", "experiment_id": "3", "status": "RUNNING"}
    metrics = [{"key": name, "value": 1.0} for name in NAMES]
    models = [{"model_id": model_id, "step": "0"} for model_id in ("m-1", "m-2") if run_id == "own"]
    run = {"info": {**info, "lifecycle_stage": stage}, "data": {"metrics": metrics}}
    return {"run": {**run, "outputs": {"model_outputs": models}}}


def mlflow(method: str, path: str) -> tuple[int, str]:
    """MLflow with two runs of three points per metric, a deleted one, and a model of the first."""
    address = urlsplit(path)
    query = parse_qs(address.query)
    if address.path == f"{API}/runs/get":
        (run_id,) = query["run_id"]
        return 200, json.dumps(run_named(run_id, "deleted" if run_id == "gone" else "active"))
    if address.path == f"{API}/metrics/get-history-bulk-interval":
        assert query["run_ids"] == ["own", "second"]
        points = [
            {"key": query["metric_key"][0], "run_id": run_id, "step": str(step), "value": value}
            for run_id in query["run_ids"]
            for step, value in ((0, 2.5), (10, "NaN"), (20, 0.5))
        ]
        return 200, json.dumps({"metrics": points})
    if address.path == f"{API}/model-versions/search":
        assert query["filter"] == ["run_id IN ('own', 'second')"]
        return 200, json.dumps(
            {"model_versions": [{"name": "a/b", "version": "4", "run_id": "own", "model_id": "m-1"}]}
        )
    return 404, "{}"


@pytest.fixture
def client(started: StartedGateway, serve: Serve) -> Iterator[httpx.Client]:
    started.mlflow = serve(mlflow)
    with started.running() as client:
        yield client


def report(started: StartedGateway, *run_ids: str) -> None:
    for run_id in run_ids:
        asyncio.run(JobRuns(started.store.engine).report("mine", 1, run_id, run_id == "own"))


def results(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/platform/jobs/mine/results").raise_for_status().json()
    return found


def test_runs_have_curves_losses_first(started: StartedGateway, client: httpx.Client) -> None:
    report(started, "second", "gone", "own")
    first, second = results(client)["runs"]
    assert (first["id"], first["name"], first["page"]) == ("own", "name of own", "#/experiments/3/runs/own")
    assert list(first["metrics"]) == ["train_loss", "val_loss", "accuracy"]
    assert first["metrics"]["val_loss"] == {"steps": [0, 10, 20], "values": [2.5, None, 0.5]}
    assert first["models"] == [
        {"name": "a/b", "version": "4", "page": "#/models/a%2Fb/versions/4"},
        {"name": "m-2", "version": None, "page": "#/experiments/3/models/m-2"},
    ]
    assert (second["id"], second["models"]) == ("second", [])


def test_job_without_runs_has_none(client: httpx.Client) -> None:
    assert results(client) == {"runs": [], "checkpoints": [], "folder": results(client)["folder"]}


def test_checkpoints_are_listed_below_folder(started: StartedGateway, client: httpx.Client, tmp_path: Path) -> None:
    for name in ("fit/checkpoint_000002", "fit/checkpoint_000001", "checkpoint_9"):
        folder = tmp_path / "storage" / "mine" / name
        folder.mkdir(parents=True)
        for file in ("a.pt", "b.pt"):
            (folder / file).write_text("x")
    (tmp_path / "storage" / "mine" / "fit" / "progress.csv").write_text("x")
    found = results(client)
    assert found["folder"] == str(tmp_path / "storage" / "mine")
    assert found["checkpoints"] == ["checkpoint_9", "fit/checkpoint_000001", "fit/checkpoint_000002"]


def test_unavailable_mlflow_is_named(started: StartedGateway, closed_port: int) -> None:
    report(started, "own")
    started.mlflow = f"http://127.0.0.1:{closed_port}"
    with started.running() as client:
        answer = client.get("/platform/jobs/mine/results")
    assert (answer.status_code, "MLflow" in answer.text) == (503, True)


def test_answer_of_rejecting_mlflow_is_named(started: StartedGateway, serve: Serve) -> None:
    report(started, "own")
    started.mlflow = serve(lambda method, path: (400, '{"error_code": "BAD_REQUEST", "message": "not today"}'))
    with started.running() as client:
        answer = client.get("/platform/jobs/mine/results")
    assert (answer.status_code, "not today" in answer.text) == (503, True)
