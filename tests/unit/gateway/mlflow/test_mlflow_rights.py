"""Rights of role accounts at MLflow, by method and path; tests/embedded/gateway/mlflow/ has more of them."""

from __future__ import annotations

import pytest

from mlplatform_gateway.mlflow.server.rights import may

ROLES, PEOPLE = ("job", "person"), ("alice", "admin", "gateway")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "2.0/mlflow/users/create"),
        ("POST", "2.0/mlflow/users/create-ui"),
        ("PATCH", "2.0/mlflow/users/update-password"),
        ("PATCH", "2.0/mlflow/users/current"),
        ("GET", "2.0/mlflow/users/list"),
        ("GET", "3.0/mlflow/users/current/permissions"),
        ("POST", "3.0/mlflow/users/permissions/grant"),
        ("POST", "3.0/mlflow/roles/create"),
        ("POST", "2.0/mlflow/experiments/permissions/create"),
        ("POST", "2.0/mlflow/webhooks"),
    ],
)
def test_roles_change_no_accounts_and_rights(method: str, path: str) -> None:
    for prefix in ("/api/", "/ajax-api/"):
        assert [name for name in ROLES if may(name, method, prefix + path)] == []
        assert [name for name in PEOPLE if not may(name, method, prefix + path)] == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/2.0/mlflow/users/current"),
        ("POST", "/api/2.0/mlflow/runs/create"),
        ("POST", "/api/2.0/mlflow/runs/delete-tag"),
        ("DELETE", "/api/2.0/mlflow/registered-models/alias"),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/0/run/artifacts/users/permissions"),
        ("POST", "/v1/traces"),
        ("GET", "/"),
    ],
)
def test_jobs_log_register_and_promote(method: str, path: str) -> None:
    assert all(may(name, method, path) for name in (*ROLES, *PEOPLE))
