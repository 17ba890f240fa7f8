"""Our parts of the MLflow server: changes and their reports, rights of role accounts, and the first page."""

from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from ray_head import BOUND_S, NO_TLS, served
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from waiting import until

from mlplatform.contract import MLFLOW_CHANGES
from mlplatform_gateway.mlflow.server import changes as mlflow_changes
from mlplatform_gateway.mlflow.server.changes import Reporter, is_change
from mlplatform_gateway.mlflow.server.pages import for_own_pages
from mlplatform_gateway.mlflow.server.rights import may

API = "/api/2.0/mlflow"
ROLES, PEOPLE = ("job", "person"), ("alice", "admin", "gateway")


@pytest.mark.parametrize(
    ("method", "path", "recorded"),
    [
        *[("POST", f"registered-models/{name}", True) for name in ("create", "alias", "rename")],
        *[("POST", f"users/{name}", True) for name in ("create", "permissions/grant")],
        *[("POST", f"experiments/{name}", True) for name in ("delete", "restore")],
        *[("POST", f"runs/{name}", True) for name in ("delete", "restore")],
        *[("POST", name, True) for name in ("model-versions/create", "roles/permissions/add", "traces/delete-traces")],
        *[("DELETE", name, True) for name in ("registered-models/alias", "model-versions/delete-tag")],
        *[("DELETE", name, True) for name in ("traces/tr-1/tags", "logged-models/m-1")],
        *[("PATCH", name, True) for name in ("model-versions/update", "users/update-password")],
        *[("POST", f"runs/{name}", False) for name in ("delete-tag", "log-batch", "search")],
        *[("POST", name, False) for name in ("registered-models/get-latest-versions", "experiments/create")],
        *[("GET", "registered-models/search", False), ("POST", "logged-models", False)],
        ("PATCH", "logged-models/m-1", False),
    ],
)
def test_what_others_rely_on_is_recorded_and_logging_is_not(method: str, path: str, recorded: bool) -> None:
    for prefix in (API, "/ajax-api/3.0/mlflow"):
        assert is_change(method, f"{prefix}/{path}") == recorded


def test_files_are_recorded_only_when_deleted() -> None:
    path = "/api/2.0/mlflow-artifacts/artifacts/0/run/artifacts/users/delete"
    assert is_change("DELETE", path)
    assert not is_change("PUT", path)
    assert not is_change("POST", path.replace("artifacts/artifacts", "artifacts/mpu/create"))


async def test_reports_wait_for_the_gateway_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_changes, "_RETRY_SECONDS", 0.01)
    got: list[Mapping[str, Any]] = []
    answers = [503, 403, 200, 400, 200]

    async def take(request: Request) -> Response:
        status = answers.pop(0)
        if status != 503:
            got.append({**await request.json(), "token": request.headers["authorization"], "status": status})
        return Response(status_code=status)

    with served(Starlette(routes=[Route(MLFLOW_CHANGES, take, methods=["POST"])])) as address:
        reporter = Reporter(address, "of the server")
        for number in range(3):
            reporter({"path": str(number)})
        await until(lambda: len(got) == 4)
    assert [(one["path"], one["status"]) for one in got] == [("0", 403), ("0", 200), ("1", 400), ("2", 200)]
    assert {one["token"] for one in got} == {"Bearer of the server"}


def test_report_shows_names_and_nothing_else() -> None:
    body = {"name": "net", "version": 3, "password": "p", "description": "long", "tags": [{"key": "a"}]}
    assert mlflow_changes.named(body) == {"name": "net", "version": "3"}
    for other in (None, [], "name", 1):
        assert mlflow_changes.named(other) == {}


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


async def echo(request: Request) -> JSONResponse:
    return JSONResponse(dict(request.headers))


def test_own_page_below_any_name_passes_without_its_origin() -> None:
    """MLflow 3.17 refuses changes by its own page at `mlflow.localhost`, and answers that of `localhost` with CORS."""
    with served(for_own_pages(Starlette(routes=[Route("/", echo, methods=["POST"])]))) as address:
        port = address.rpartition(":")[2]
        own, other = f"mlflow.localhost:{port}", f"minio.localhost:{port}"
        for host, origin, status in ((own, own, 200), (own, other, 403), (own, "mlflow.localhost:1", 403)):
            headers = {"Host": host, "Origin": f"http://{origin}"}
            answer = httpx.post(address, headers=headers, timeout=BOUND_S, verify=NO_TLS)
            assert answer.status_code == status, origin
            assert status != 200 or "origin" not in answer.json()
