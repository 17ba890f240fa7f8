"""Rules of the stack's MLflow server, on a real one with accounts, SQLite and a folder for artifacts."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import httpx
import pytest
from guarded_mlflow import FILES, PASSWORD, SUMS, Server, refused

from mlplatform.errors import RegistryError
from mlplatform.files import checksums
from mlplatform.registry import models


def change_tags(server: Server, statement: str, *values: str) -> None:
    """Change tags of versions behind the server's back."""
    with sqlite3.connect(server.log.parent / "mlflow.db") as database:
        assert database.execute(statement, values).rowcount == 1


def test_artifacts_elsewhere_are_refused(server: Server) -> None:
    for number, field in enumerate(("artifact_location", "artifactLocation")):
        for place in ("/tmp/probe", "s3://jobs/probe", "mlflow-artifacts:/../x", "mlflow-artifacts://host/x"):
            values = {"name": f"elsewhere-{number}", field: place}
            answer = server.send("job", "POST", "experiments/create", values)
            assert answer.status_code in (400, 403), (place, answer.text)
    values = {"name": "elsewhere", "artifact_location": "s3://jobs/probe"}
    assert refused(server.send("job", "POST", "experiments/create", values), "is not this server's")
    assert server.send("job", "POST", "experiments/create", {"name": "assigned"}).is_success
    server.call("job", "POST", "registered-models/create", {"name": "elsewhere"})
    for source in ("s3://jobs/x", "mlflow-artifacts:/0", "https://example.org/x"):
        version = {"name": "elsewhere", "source": source}
        answer = server.send("job", "POST", "model-versions/create", version)
        assert answer.status_code in (400, 403), (source, answer.text)


def test_files_of_registered_version_stay_as_they_are(server: Server) -> None:
    path, answer = server.register("person", "kept")
    assert answer.is_success, answer.text
    for method, where in (("PUT", f"{path}/data.pkl"), ("PUT", f"{path}/new"), ("PUT", f"{path}/SHA256SUMS")):
        for prefix in (FILES, FILES.replace("/api", "/ajax-api")):
            answer = server.send("job", method, f"{prefix}/{where}", content=b"POISON")
            assert refused(answer, "registered model 'kept'"), (prefix, where, answer.text)
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        answer = server.send("admin", "DELETE", f"{FILES}/{'/'.join(parts[:depth])}")
        assert refused(answer, "registered model 'kept'"), answer.text
    for step in ("create", "complete"):
        values = {"path": "data.pkl", "num_parts": 1, "upload_id": "x", "parts": []}
        answer = server.send("job", "POST", f"/api/2.0/mlflow-artifacts/mpu/{step}/{path}", values)
        assert answer.status_code in (403, 501), answer.text
    assert server.send("job", "GET", f"{FILES}/{path}/data.pkl").content == b"weights"
    assert server.send("person", "PUT", f"{FILES}/{path}-next/data.pkl", content=b"other").is_success


def test_first_checksums_may_follow_registration(server: Server) -> None:
    path, answer = server.register("person", "bare", sums=False)
    assert answer.is_success, answer.text
    assert server.send("person", "PUT", f"{FILES}/{path}/SHA256SUMS", content=b"x  data.pkl\n").is_success
    assert server.send("person", "PUT", f"{FILES}/{path}/SHA256SUMS", content=b"y  data.pkl\n").status_code == 403


def test_digest_is_signed_by_server_alone(server: Server) -> None:
    digest = checksums.digest(SUMS)
    _, answer = server.register("person", "signed", mlplatform_digest=digest, team="vision")
    version = answer.json()["model_version"]
    tags = {tag["key"]: tag["value"] for tag in version["tags"]}
    assert tags["mlplatform.digest"] == digest
    assert tags["team"] == "vision"
    named = {"name": "signed", "version": "1"}
    assert server.call("job", "GET", "mlplatform/digest", named) == {"digest": digest, "signed": True}
    for key in ("mlplatform.digest", "mlplatform.signature"):
        forged = {**named, "key": key, "value": "forged"}
        for user in ("job", "person", "admin"):
            assert refused(server.send(user, "POST", "model-versions/set-tag", forged), "set by the server")
            removed = server.send(user, "DELETE", "model-versions/delete-tag", {**named, "key": key})
            assert removed.status_code == 403
    assert server.call("job", "GET", "mlplatform/digest", named)["signed"]


def test_forged_digest_prevents_registration(server: Server) -> None:
    for tags in ({"mlplatform_digest": "forged"}, {"mlplatform_signature": "forged"}):
        _, answer = server.register("job", "forged", **tags)
        assert answer.status_code == 403, answer.text
    found = server.call("job", "GET", "model-versions/search", {"filter": "name = 'forged'"})
    assert not found.get("model_versions")


def test_version_with_unreadable_checksums_is_not_registered(server: Server) -> None:
    run = server.call("person", "POST", "runs/create", {"experiment_id": "0"})["run"]["info"]
    path = run["artifact_uri"].removeprefix("mlflow-artifacts:/").strip("/") + "/model"
    server.call("person", "POST", "registered-models/create", {"name": "broken"})
    for content in (b"x\n", b"\xff\xfe\n", b"0  ../data.pkl\n"):
        assert server.send("person", "PUT", f"{FILES}/{path}/SHA256SUMS", content=content).is_success
        version = {"name": "broken", "source": f"mlflow-artifacts:/{path}", "run_id": run["run_id"]}
        answer = server.send("person", "POST", "model-versions/create", version)
        assert answer.status_code >= 400, content
        assert "No version of 'broken' was registered: the SHA256SUMS of" in answer.text
    found = server.call("person", "GET", "model-versions/search", {"filter": "name = 'broken'"})
    assert not found.get("model_versions")


def test_only_administrator_signs_old_versions(server: Server) -> None:
    path, answer = server.register("person", "old", sums=False)
    assert answer.is_success
    named = {"name": "old", "version": "1"}
    assert server.call("person", "GET", "mlplatform/digest", named) == {"digest": "", "signed": False}
    assert server.send("person", "POST", "mlplatform/sign", named).status_code == 403
    assert refused(server.send("admin", "POST", "mlplatform/sign", named), "cannot be signed")
    text = checksums.render(SUMS).encode()
    assert server.send("person", "PUT", f"{FILES}/{path}/SHA256SUMS", content=text).is_success
    assert server.call("admin", "POST", "mlplatform/sign", named)["signed"]


def test_download_requires_signature_of_this_server(server: Server, as_person: None, tmp_path: Path) -> None:
    server.register("person", "fetched")
    assert (models.download("fetched/1", tmp_path / "own") / "data.pkl").read_bytes() == b"weights"
    forged = "UPDATE model_version_tags SET value = ? WHERE key = 'mlplatform.signature' AND name = 'fetched'"
    change_tags(server, forged, "0" * 64)
    with pytest.raises(RegistryError, match="restored without its secrets/mlflow_signing_key"):
        models.download("fetched/1", tmp_path / "forged")
    assert not (tmp_path / "forged").exists()
    server.call("admin", "POST", "mlplatform/sign", {"name": "fetched", "version": "1"})
    assert models.download("fetched/1", tmp_path / "forged").is_dir()


def test_download_reports_unsigned_and_unchecked_versions(
    server: Server, as_person: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.register("person", "early")
    change_tags(server, "DELETE FROM model_version_tags WHERE key = 'mlplatform.signature' AND name = 'early'")
    assert (models.download("early/1", tmp_path / "early") / "data.pkl").read_bytes() == b"weights"
    assert "early version 1 is unsigned: it is older than the server's signatures." in capsys.readouterr().err
    other = "UPDATE model_version_tags SET value = ? WHERE key = 'mlplatform.digest' AND name = 'early'"
    change_tags(server, other, "0" * 64)
    with pytest.raises(RegistryError, match="checksums of early version 1 are not the registered ones"):
        models.download("early/1", tmp_path / "changed")
    server.register("person", "unchecked", sums=False)
    assert models.download("unchecked/1", tmp_path / "unchecked").is_dir()
    assert "unchecked version 1 was registered without checksums" in capsys.readouterr().err


def test_changes_of_registered_models_are_recorded(server: Server) -> None:
    server.register("person", "moved")
    server.register("person", "moved")
    for version in ("1", "2"):
        values = {"name": "moved", "alias": "champion", "version": version}
        server.call("job", "POST", "registered-models/alias", values)
    server.call("admin", "DELETE", "registered-models/delete", {"name": "moved"})
    assert server.send("job", "GET", "mlplatform/audit").status_code == 403
    found = server.call("person", "GET", "mlplatform/audit")["changes"]
    ours = [change for change in found if change["object"].startswith("models:/moved")]
    deleted, alias = ours[0], ours[1]
    assert (deleted["verb"], deleted["who"]) == ("delete_registered_model", "admin")
    assert (alias["verb"], alias["who"], alias["address"]) == ("set_registered_model_alias", "job", "127.0.0.1")
    assert '"aliases": {"champion": "1"}' in alias["before"]
    assert '"version": "2"' in alias["after"]
    assert 'audit {"time"' in server.log.read_text()


def test_only_administrator_changes_passwords(server: Server) -> None:
    for prefix in ("/api", "/ajax-api"):
        path = f"{prefix}/2.0/mlflow/users/update-password"
        for user in ("job", "person"):
            values = {"username": user, "password": "another-password"}
            assert refused(server.send(user, "PATCH", path, values), "Only the administrator may change a password")
    values = {"username": "job", "password": f"{PASSWORD}job"}
    assert server.send("admin", "PATCH", "users/update-password", values).is_success


def test_gateway_for_language_models_is_off(server: Server) -> None:
    values = {"secret_name": "x", "secret_value": {"api_key": "x"}, "provider": "openai"}
    paths = [f"/{api}/3.0/mlflow/gateway/secrets/create" for api in ("api", "ajax-api")]
    answers = [server.send("admin", "POST", path, values) for path in paths]
    assert all(answer.status_code == 501 for answer in answers), [answer.text for answer in answers]


def test_every_page_has_security_headers(server: Server) -> None:
    for path in ("/", "/health", f"{FILES}/none", "/none"):
        headers = server.send("person", "GET", path).headers
        assert headers["X-Content-Type-Options"] == "nosniff", path
        assert headers["X-Frame-Options"] == "SAMEORIGIN", path
        assert "frame-ancestors 'self'" in headers["Content-Security-Policy"], path


def test_server_writes_nothing_to_its_home(server: Server) -> None:
    assert server.send("person", "GET", "/").is_success
    assert list((server.log.parent / "home").rglob("*")) == []


def test_unknown_user_costs_as_much_as_wrong_password(server: Server) -> None:
    def seconds(user: str) -> float:
        begin = time.monotonic()
        httpx.get(f"{server.address}/version", auth=(user, "wrong"))
        return time.monotonic() - begin

    pairs = [(seconds("nobody"), seconds("job")) for _ in range(5)]
    unknown, known = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    assert known / 2 < unknown < known * 2


def test_failed_log_ins_are_throttled_but_correct_ones_pass(server: Server) -> None:
    wrong = [httpx.get(f"{server.address}/version", auth=("job", "wrong")) for _ in range(12)]
    assert wrong[-1].status_code == 429
    assert "Too many failed log-ins" in wrong[-1].text
    assert server.send("job", "GET", "/version").is_success
