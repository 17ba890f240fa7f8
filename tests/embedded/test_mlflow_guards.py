"""Rules of the stack's MLflow server, on a real one with accounts, SQLite and a folder for artifacts."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from embedded import wait_for

from mlplatform.errors import RegistryError
from mlplatform.files import checksums
from mlplatform.local.processes import free_ports
from mlplatform.registry import models
from mlplatform.settings.job import settings

pytest.importorskip("flask_wtf")

PASSWORD = "a-long-password-"
FILES = "/api/2.0/mlflow-artifacts/artifacts"
ACCOUNTS = ("admin", "gateway", "job", "person")

SETUP = """
import sys
from mlplatform.compat import mlflow_audit, mlflow_server
mlflow_audit.create_audit_table(sys.argv[1])
mlflow_server.set_accounts([(user, sys.argv[2] + user) for user in sys.argv[3:]])
"""


class Server:
    """A running server, and what its clients do."""

    def __init__(self, address: str, log: Path) -> None:
        self.address, self.log = address, log

    def send(self, user: str, method: str, path: str, values: Any = None, **options: Any) -> httpx.Response:
        full = path if path.startswith("/") else f"/api/2.0/mlflow/{path}"
        sent = {} if values is None else {"params" if method == "GET" else "json": values}
        account = (user, PASSWORD + user)
        return httpx.request(method, self.address + full, **{"auth": account, "timeout": 60, **sent, **options})

    def call(self, user: str, method: str, path: str, values: Any = None) -> Any:
        answer = self.send(user, method, path, values)
        assert answer.is_success, answer.text
        return answer.json()

    def register(self, user: str, name: str, sums: bool = True, **tags: str) -> tuple[str, httpx.Response]:
        """Upload a file to a new run and register its folder; return the folder's path and the answer."""
        run = self.call(user, "POST", "runs/create", {"experiment_id": "0"})["run"]["info"]
        path = run["artifact_uri"].removeprefix("mlflow-artifacts:/").strip("/") + "/model"
        assert self.send(user, "PUT", f"{FILES}/{path}/data.pkl", content=b"weights").is_success
        if sums:
            text = checksums.render(SUMS)
            assert self.send(user, "PUT", f"{FILES}/{path}/SHA256SUMS", content=text.encode()).is_success
        self.send(user, "POST", "registered-models/create", {"name": name})
        pairs = [{"key": key.replace("_", "."), "value": value} for key, value in tags.items()]
        version = {"name": name, "source": f"mlflow-artifacts:/{path}", "run_id": run["run_id"], "tags": pairs}
        return path, self.send(user, "POST", "model-versions/create", version)


SUMS = {"data.pkl": hashlib.sha256(b"weights").hexdigest()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("mlflow")
    database = f"sqlite:///{folder}/mlflow.db"
    (folder / "auth.ini").write_text(
        f"[mlflow]\ndatabase_uri = sqlite:///{folder}/auth.db\ndefault_permission = EDIT\nadmin_username = admin\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\nauth_cache_ttl_seconds = 600\n"
    )
    (folder / "key").write_text("a key of the server")
    (folder / "fernet").write_text("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
    environment = {
        **os.environ,
        "MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini"),
        "MLPLATFORM_MLFLOW_KEY_FILE": str(folder / "key"),
        "MLPLATFORM_MLFLOW_SIGNING_KEY_FILE": str(folder / "key"),
        "MLPLATFORM_MLFLOW_WEBHOOK_KEY_FILE": str(folder / "fernet"),
        "MLFLOW_ENABLE_AI_GATEWAY": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    subprocess.run([sys.executable, "-m", "mlflow", "db", "upgrade", database], env=environment, check=True)
    subprocess.run([sys.executable, "-c", SETUP, database, PASSWORD, *ACCOUNTS], env=environment, check=True)
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "mlflow", "server", "--app-name=mlplatform", "--workers=1", f"--port={port}"]
    command += [f"--backend-store-uri={database}", f"--artifacts-destination={folder}/artifacts"]
    with (folder / "log").open("w") as log:
        # What it writes there would fail in a container with a read-only root.
        (folder / "home").mkdir()
        environment["HOME"] = str(folder / "home")
        process = subprocess.Popen(command, env=environment, cwd=folder / "home", stdout=log, stderr=log)
    try:
        found = Server(f"http://127.0.0.1:{port}", folder / "log")
        wait_for(lambda: answers(found), "the server to answer")
        yield found
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def as_person(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make this process a client of the server."""
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "person")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", f"{PASSWORD}person")
    settings.cache_clear()
    mlflow.set_tracking_uri(server.address)
    yield
    mlflow.set_tracking_uri(None)
    settings.cache_clear()


def change_tags(server: Server, statement: str, *values: str) -> None:
    """Change tags of versions behind the server's back."""
    with sqlite3.connect(server.log.parent / "mlflow.db") as database:
        assert database.execute(statement, values).rowcount == 1


def answers(server: Server) -> bool:
    try:
        return httpx.get(f"{server.address}/health").is_success
    except httpx.TransportError:
        return False


def refused(answer: httpx.Response, sentence: str) -> bool:
    return answer.status_code == 403 and sentence in answer.text


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


def span_with(tags: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """A trace's id and its only span, in OpenTelemetry's JSON, with tags of the trace."""
    trace = uuid.uuid4().hex
    attributes = [{"key": f"mlflow.traceTag.{key}", "value": {"stringValue": value}} for key, value in tags.items()]
    span = {"traceId": trace, "spanId": trace[:16], "name": "probe", "attributes": attributes}
    span |= {"startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    return f"tr-{trace}", {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def test_trace_cannot_be_placed_elsewhere(server: Server) -> None:
    experiment = server.call("job", "POST", "experiments/create", {"name": "traces"})["experiment_id"]
    location = {"key": "mlflow.artifactLocation", "value": "s3://jobs/x"}
    old = {"experiment_id": experiment, "timestamp_ms": 1, "request_metadata": [], "tags": [location]}
    assert refused(server.send("job", "POST", "traces", old), "is not this server's")
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}}
    info = {"trace_id": "tr-1", "trace_location": place, "request_time": "2026-11-01T00:00:00Z", "state": "OK"}
    path = "/api/3.0/mlflow/traces"
    for tags in ({location["key"]: location["value"]}, {location["key"]: "mlflow-artifacts:/../x"}):
        answer = server.send("job", "POST", path, {"trace": {"trace_info": {**info, "tags": tags}}})
        assert refused(answer, "is not this server's"), answer.text
    assert server.send("job", "POST", path, {"trace": {"trace_info": info}}).is_success
    for key in (location["key"], "mlflow.trace.archiveLocation"):
        for version in ("2.0", "3.0"):
            values = {**location, "key": key}
            answer = server.send("job", "PATCH", f"/api/{version}/mlflow/traces/tr-1/tags", values)
            # MLflow itself refuses some of these since 3.17.
            assert refused(answer, "is not this server's") or "is immutable" in answer.text, (key, answer.text)
        ended = {"timestamp_ms": 2, "status": "OK", "request_metadata": [], "tags": [{**location, "key": key}]}
        assert refused(server.send("job", "PATCH", "traces/tr-1", ended), "is not this server's")
    tag = {"key": "team", "value": "vision"}
    assert server.send("job", "PATCH", "/api/3.0/mlflow/traces/tr-1/tags", tag).is_success


def test_files_of_trace_are_read_from_this_server_only(server: Server, tmp_path: Path) -> None:
    attachment = str(uuid.uuid4())
    (tmp_path / "attachments").mkdir()
    (tmp_path / "attachments" / attachment).write_text("stolen")
    (tmp_path / "traces.pb").write_text("stolen")
    headers = {"x-mlflow-experiment-id": "0"}
    archive = {"mlflow.trace.spansLocation": "ARCHIVE_REPO", "mlflow.trace.archiveLocation": str(tmp_path)}
    for tags, path in ((archive, ""), ({"mlflow.artifactLocation": str(tmp_path)}, attachment)):
        trace, spans = span_with(tags)
        answer = server.send("job", "POST", "/v1/traces", spans, headers=headers)
        assert "is not this server's" in answer.text, (tags, answer.status_code, answer.text)
        values = {"request_id": trace} | ({"path": path} if path else {})
        answer = server.send("job", "GET", "/ajax-api/2.0/mlflow/get-trace-artifact", values)
        assert not answer.is_success, (tags, answer.text)
    trace, spans = span_with({})
    assert server.send("job", "POST", "/v1/traces", spans, headers=headers).is_success
    values = {"request_id": trace}
    assert server.call("job", "GET", "/ajax-api/2.0/mlflow/get-trace-artifact", values)["spans"]


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
    server.call("admin", "POST", "runs/delete", {"run_id": identity})
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
    assert server.call("job", "GET", "mlplatform/digest", named)["signed"]
    assert server.send("job", "GET", f"{FILES}/{path}/data.pkl").content == b"weights"
    # Only the version kept it.
    server.call("admin", "DELETE", "model-versions/delete", named)
    assert expired(server)[identity]["removable"]
    assert server.call("gateway", "POST", "mlplatform/expired", {"id": identity, "days": 0}) == {"removed": True}


def test_only_gateway_removes_deleted_runs(server: Server) -> None:
    for user in ("job", "person"):
        for method in ("GET", "POST"):
            values = {"id": "x", "days": 0}
            assert server.send(user, method, "mlplatform/expired", values).status_code == 403
    for days in (None, -1, "all", True):
        answer = server.send("gateway", "POST", "mlplatform/expired", {"id": "x", "days": days})
        assert answer.status_code == 400, (days, answer.text)


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
