"""Requests at MLflow that a job may send: it logs and registers, and neither deletes nor manages rights."""

from __future__ import annotations

import pytest

from mlplatform.compat.mlflow_tokens import may_job

API = "/api/2.0/mlflow"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{API}/runs/get"),
        ("POST", f"{API}/runs/create"),
        ("POST", f"{API}/runs/search"),
        ("POST", f"{API}/runs/log-batch"),
        ("POST", f"{API}/runs/set-tag"),
        ("POST", f"{API}/runs/delete-tag"),
        ("POST", f"{API}/experiments/create"),
        ("POST", f"{API}/registered-models/create"),
        ("POST", f"{API}/registered-models/alias"),
        ("POST", f"{API}/model-versions/create"),
        ("PATCH", f"{API}/model-versions/update"),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/1/run/artifacts/model/weights"),
        ("POST", f"{API}/logged-models"),
        ("PATCH", f"{API}/logged-models/m-1"),
    ],
)
def test_job_logs_and_registers(method: str, path: str) -> None:
    assert may_job(method, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", f"{API}/runs/delete"),
        ("POST", f"{API}/runs/restore"),
        ("POST", f"{API}/experiments/delete"),
        ("POST", "/ajax-api/2.0/mlflow/experiments/delete"),
        ("DELETE", f"{API}/registered-models/delete"),
        ("DELETE", f"{API}/model-versions/delete"),
        ("DELETE", f"{API}/registered-models/alias"),
        ("DELETE", f"{API}/logged-models/m-1"),
        ("DELETE", "/api/2.0/mlflow-artifacts/artifacts/1/run"),
        ("POST", f"{API}/users/create"),
        ("PATCH", f"{API}/users/update-password"),
        ("POST", f"{API}/experiments/permissions/create"),
        ("PATCH", f"{API}/registered-models/permissions/update"),
        ("POST", f"{API}/webhooks"),
        ("POST", "/api/3.0/mlflow/workspaces"),
        ("PATCH", "/api/3.0/mlflow/workspaces/x"),
        ("PATCH", "/ajax-api/3.0/mlflow/demo/delete"),
        ("PATCH", "/api/3.0/mlflow/scorers/online-config"),
        ("OPTIONS", f"{API}/runs/get"),
    ],
)
def test_job_deletes_nothing_and_manages_no_rights(method: str, path: str) -> None:
    assert not may_job(method, path)
