"""The main job on the stack: results of `make smoke` in MLflow, MinIO and Ray."""

from __future__ import annotations

import pytest
from host import Stack, Trained


@pytest.fixture
def job_run(stack: Stack, trained: Trained) -> dict:
    """The job's only run, as MLflow's API returns it."""
    runs = stack.runs_of(trained.id)
    assert len(runs) == 1, f"job {trained.id} has {len(runs)} runs instead of one"
    return runs[0]


def test_job_succeeded_with_its_log(stack: Stack, trained: Trained) -> None:
    job = stack.ray.get(f"/api/jobs/{trained.id}").json()
    assert job["status"] == "SUCCEEDED", job
    assert "Test accuracy: 0.9" in trained.log
    assert "models:/digits@champion" in trained.log
    page = f"http://mlflow.localhost:{stack.settings.mlflow_port}/#/experiments/"
    assert page in trained.log, "no link to the run's page"


def test_run_is_finished_with_metrics_parameters_and_picture(stack: Stack, job_run: dict) -> None:
    info, data = job_run["info"], job_run["data"]
    assert info["status"] == "FINISHED"
    metrics = {metric["key"]: metric["value"] for metric in data["metrics"]}
    assert metrics["test_accuracy"] >= 0.95
    assert {"epochs", "lr", "workers"} <= {parameter["key"] for parameter in data["params"]}
    files = stack.mlflow.get("/artifacts/list", params={"run_id": info["run_id"]}).json()["files"]
    assert "confusion_matrix.png" in {file["path"] for file in files}


def test_checkpoints_and_artifacts_are_stored_in_buckets(stack: Stack, trained: Trained, job_run: dict) -> None:
    checkpoints = [key for key in stack.objects("ray", f"{trained.id}/") if key.endswith("checkpoint.ckpt")]
    assert checkpoints
    artifacts = stack.objects("mlflow-artifacts")
    assert any(job_run["info"]["run_id"] in key and key.endswith("confusion_matrix.png") for key in artifacts)
    assert any("/models/" in key for key in artifacts), "the model is not among the artifacts"
