"""Final removal of what was deleted in MLflow, which the stack's server does for the gateway."""

from __future__ import annotations

from typing import Any

from guarded_mlflow import FILES, Server


def expired(server: Server, days: float = 0, after: str = "") -> dict[str, dict[str, Any]]:
    """Deleted runs and models by id, as the gateway lists them."""
    found = server.call("gateway", "GET", "mlplatform/expired", {"days": days, "after": after})["expired"]
    return {entry["id"]: entry for entry in found}


def test_deleted_run_is_removed_with_its_files(server: Server) -> None:
    run = server.call("job", "POST", "runs/create", {"experiment_id": "0"})["run"]["info"]
    path = run["artifact_uri"].removeprefix("mlflow-artifacts:/").strip("/")
    for name, content in (("plot.png", b"12345"), ("folder/log.txt", b"678")):
        assert server.send("job", "PUT", f"{FILES}/{path}/{name}", content=content).is_success
    identity = run["run_id"]
    assert identity not in expired(server)
    assert server.call("gateway", "POST", "mlplatform/expired", {"id": identity, "days": 0}) == {"removed": False}
    server.call("alice", "POST", "runs/delete", {"run_id": identity})
    assert not expired(server)[identity]["removable"], "a run that is open may be that of a running job"
    server.call("admin", "POST", "runs/restore", {"run_id": identity})
    server.call("job", "POST", "runs/update", {"run_id": identity, "status": "FINISHED", "end_time": 1})
    server.call("admin", "POST", "runs/delete", {"run_id": identity})
    assert expired(server)[identity] == {"id": identity, "removable": True, "files": 2, "bytes": 8}
    assert expired(server, days=1) == {}
    assert expired(server, after=identity) == {}
    assert server.call("gateway", "POST", "mlplatform/expired", {"id": identity, "days": 1}) == {"removed": False}
    assert server.call("gateway", "POST", "mlplatform/expired", {"id": identity, "days": 0}) == {"removed": True}
    assert server.send("admin", "GET", "runs/get", {"run_id": identity}).status_code == 404
    assert not list((server.log.parent / "artifacts" / path).rglob("*.*"))


def test_deleted_run_of_registered_model_is_kept(server: Server) -> None:
    path, answer = server.register("person", "origin")
    identity = answer.json()["model_version"]["run_id"]
    server.call("person", "POST", "runs/update", {"run_id": identity, "status": "FINISHED", "end_time": 1})
    server.call("admin", "POST", "runs/delete", {"run_id": identity})
    assert not expired(server)[identity]["removable"]
    assert server.call("gateway", "POST", "mlplatform/expired", {"id": identity, "days": 0}) == {"removed": False}
    named = {"name": "origin", "version": "1"}
    assert server.send("job", "GET", f"{FILES}/{path}/data.pkl").content == b"weights"
    # Only the version kept it.
    server.call("admin", "DELETE", "model-versions/delete", named)
    assert expired(server)[identity]["removable"]
    assert server.call("gateway", "POST", "mlplatform/expired", {"id": identity, "days": 0}) == {"removed": True}


def test_invalid_age_of_deleted_runs_is_refused(server: Server) -> None:
    for days in (None, -1, "all", True):
        answer = server.send("gateway", "POST", "mlplatform/expired", {"id": "x", "days": days})
        assert answer.status_code == 400, (days, answer.text)
