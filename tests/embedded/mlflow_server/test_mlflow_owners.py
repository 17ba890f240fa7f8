"""People's tokens and those of their jobs at the stack's MLflow server: who may log where, and who may delete."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from guarded_mlflow import FILES, SUMS, TOKENS, Server, refused

from mlplatform.files import checksums


def new_run(server: Server, user: str) -> dict[str, Any]:
    """Create a run whose client says that it is somebody else's; return what is known about it."""
    values = {"experiment_id": "0", "user_id": "mallory", "tags": [{"key": "mlflow.user", "value": "mallory"}]}
    return dict(server.call(user, "POST", "runs/create", values)["run"])


def path_of(run: dict[str, Any]) -> str:
    return str(run["info"]["artifact_uri"]).removeprefix("mlflow-artifacts:/").strip("/")


def test_run_belongs_to_owner_of_token(server: Server) -> None:
    for user in ("job-alice", "person-alice"):
        run = new_run(server, user)
        assert run["info"]["user_id"] == "alice"
        assert {"key": "mlflow.user", "value": "alice"} in run["data"]["tags"]


def test_job_changes_runs_of_its_owner_only(server: Server) -> None:
    mine, hers, shared = (new_run(server, user) for user in ("job-bob", "job-alice", "person"))
    number = {"key": "loss", "value": 1.0, "timestamp": 1, "step": 0}
    changes: list[tuple[str, dict[str, Any]]] = [
        ("runs/log-metric", number),
        ("runs/log-batch", {"metrics": [number]}),
        ("runs/log-parameter", {"key": "lr", "value": "1"}),
        ("runs/set-tag", {"key": "note", "value": "1"}),
        ("runs/delete-tag", {"key": "note"}),
        ("runs/update", {"status": "FINISHED"}),
    ]
    for path, values in changes:
        assert server.send("job-bob", "POST", path, {**values, "run_id": mine["info"]["run_id"]}).is_success, path
        for other in (hers, shared):
            answer = server.send("job-bob", "POST", path, {**values, "run_id": other["info"]["run_id"]})
            assert refused(answer, "a job of bob changes only bob's"), (path, answer.text)
    assert server.send(
        "job-alice", "POST", "runs/set-tag", {**changes[3][1], "run_id": hers["info"]["run_id"]}
    ).is_success


def test_job_writes_files_of_its_owner_only(server: Server) -> None:
    mine, hers = path_of(new_run(server, "job-bob")), path_of(new_run(server, "job-alice"))
    for prefix in (FILES, FILES.replace("/api", "/ajax-api")):
        assert server.send("job-bob", "PUT", f"{prefix}/{mine}/weights", content=b"1").is_success
        for path in (f"{hers}/weights", f"{mine}/../../../{hers}/weights", "0/weights"):
            answer = server.send("job-bob", "PUT", f"{prefix}/{path}", content=b"2")
            assert answer.status_code in (400, 403, 404), (path, answer.text)
    assert server.send("job-alice", "GET", f"{FILES}/{hers}/weights").status_code == 404
    assert server.send("job-bob", "GET", f"{FILES}/{mine}/weights").content == b"1"


def test_job_registers_its_model_and_moves_alias(server: Server) -> None:
    run = new_run(server, "job-alice")
    path = path_of(run) + "/model"
    assert server.send("job-alice", "PUT", f"{FILES}/{path}/data.pkl", content=b"weights").is_success
    sums = checksums.render(SUMS).encode()
    assert server.send("job-alice", "PUT", f"{FILES}/{path}/SHA256SUMS", content=sums).is_success
    server.call("job-alice", "POST", "registered-models/create", {"name": "hers"})
    version = {"name": "hers", "source": f"mlflow-artifacts:/{path}", "run_id": run["info"]["run_id"]}
    made = server.call("job-alice", "POST", "model-versions/create", version)["model_version"]["version"]
    alias = {"name": "hers", "alias": "champion", "version": made}
    server.call("job-alice", "POST", "registered-models/alias", alias)
    renamed = {"name": "hers", "new_name": "mine"}
    assert refused(server.send("job-bob", "POST", "registered-models/rename", renamed), "A job of bob may log")
    server.call("admin", "DELETE", "registered-models/delete", {"name": "hers"})


def test_job_registers_no_files_of_others(server: Server) -> None:
    run = new_run(server, "job-alice")
    hers = path_of(run)
    assert server.send("job-alice", "PUT", f"{FILES}/{hers}/model/data.pkl", content=b"weights").is_success
    server.call("job-bob", "POST", "registered-models/create", {"name": "taken"})
    for user, path, sentence in (
        ("job-bob", f"{hers}/model", "a job of bob changes only bob's"),
        ("job-alice", hers, "is not on this server"),
        ("person", hers, "is not on this server"),
    ):
        version = {"name": "taken", "source": f"mlflow-artifacts:/{path}", "run_id": run["info"]["run_id"]}
        assert refused(server.send(user, "POST", "model-versions/create", version), sentence), (user, path)
    found = server.call("person", "GET", "model-versions/search", {"filter": "name = 'taken'"})
    assert not found.get("model_versions")
    assert server.send("job-alice", "PUT", f"{FILES}/{hers}/model/data.pkl", content=b"newer").is_success


def test_job_adds_no_metric_to_model_of_others(server: Server) -> None:
    mine, hers = new_run(server, "job-bob")["info"], new_run(server, "job-alice")["info"]
    logged = {"experiment_id": "0", "name": "net", "source_run_id": hers["run_id"]}
    model = server.call("job-alice", "POST", "logged-models", logged)["model"]["info"]["model_id"]
    number = {"key": "loss", "value": 1.0, "timestamp": 1, "step": 0, "model_id": model}
    for path, values in (("runs/log-metric", number), ("runs/log-batch", {"metrics": [number]})):
        assert refused(
            server.send("job-bob", "POST", path, {**values, "run_id": mine["run_id"]}),
            "a job of bob changes only bob's",
        ), path
        assert server.send("job-alice", "POST", path, {**values, "run_id": hers["run_id"]}).is_success, path


def test_second_credential_gives_job_no_other_rights(server: Server) -> None:
    run_id = new_run(server, "job-alice")["info"]["run_id"]
    address = f"{server.address}/api/2.0/mlflow/runs/delete"
    right = httpx.BasicAuth("alice", TOKENS["job-alice"])._auth_header
    unknown = httpx.BasicAuth("x", "mlp_" + "z" * 20 + "_" + "Z" * 40)._auth_header
    for headers in (
        [("X-MLflow-Authorization", unknown), ("Authorization", right)],
        [("Authorization", unknown), ("Authorization", right)],
        [("Authorization", right), ("Authorization", unknown)],
        [("Authorization", right.replace(" ", "\t"))],
        [("Authorization", right.replace(" ", "  "))],
        [("Authorization", right.replace("Basic", "bAsIc"))],
        [("Authorization", f"{right}=")],
    ):
        status = httpx.post(address, json={"run_id": run_id}, headers=headers).status_code
        assert status in (401, 403, 429), (headers, status)
    assert server.call("person", "GET", "runs/get", {"run_id": run_id})["run"]["info"]["lifecycle_stage"] == "active"


@pytest.mark.parametrize("owner", ["job-alice", "job-bob"])
def test_job_deletes_nothing(server: Server, owner: str) -> None:
    run = new_run(server, "job-alice")
    run_id, path = run["info"]["run_id"], path_of(run)
    assert server.send("job-alice", "PUT", f"{FILES}/{path}/weights", content=b"1").is_success
    for method, where, values in (
        ("POST", "runs/delete", {"run_id": run_id}),
        ("POST", "/ajax-api/2.0/mlflow/runs/delete", {"run_id": run_id}),
        ("POST", "/api/2.0//mlflow/runs/delete", {"run_id": run_id}),
        ("POST", "experiments/delete", {"experiment_id": "0"}),
        ("DELETE", f"{FILES}/{path}/weights", None),
    ):
        answer = server.send(owner, method, where, values)
        assert answer.status_code == 403, (where, answer.status_code)
    assert server.call("person", "GET", "runs/get", {"run_id": run_id})["run"]["info"]["lifecycle_stage"] == "active"


def test_token_is_accepted_with_its_owners_name_only(server: Server) -> None:
    def status(user: str, token: str) -> int:
        address = f"{server.address}/api/2.0/mlflow/runs/search"
        return httpx.post(address, json={"experiment_ids": ["0"]}, auth=(user, token)).status_code

    right = TOKENS["person-alice"]
    assert status("alice", right) == 200
    unknown = "mlp_dddddddddddddddddddd_" + "D" * 40
    for user, token in (("bob", right), ("admin", right), ("alice", right[:-1] + "x"), ("alice", unknown)):
        # 429 once there were many.
        assert status(user, token) in (401, 429), (user, token)
