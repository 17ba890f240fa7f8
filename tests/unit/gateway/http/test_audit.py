"""The audit log over HTTP: which requests are recorded, as whose, and how the log is read."""

import asyncio
import io
import time
import zipfile
from typing import Any

import httpx
import pytest
from described import schemas
from ray_head import AUTHORIZED, BOUND_S, NO_TLS, TOKEN, Head
from sqlalchemy import text
from starlette.responses import Response
from started_gateway import StartedGateway

from mlplatform_gateway.audit.store import AuditLog
from mlplatform_gateway.database.engine import connect
from mlplatform_gateway.http import auth
from mlplatform_gateway.http.auth import COOKIE, LOGIN, LOGIN_PAGE, LOGOUT, TokenCheck

SCOPE = {"type": "http", "method": "GET", "path": "/api/jobs/", "client": ("10.0.0.7", 5000)}


def entries(client: httpx.Client, **window: Any) -> list[dict[str, Any]]:
    answer = client.get("/platform/audit", params=window)
    assert answer.status_code == 200, answer.text
    return answer.json()["entries"]


def actions(client: httpx.Client) -> list[tuple[str, str, str]]:
    """Kind, verb and object of each entry of a request, sessions without their ids."""
    found = [(entry["kind"], entry["verb"], entry["object"]) for entry in entries(client, limit=1000)]
    return [(kind, verb, what.split()[0] if "session" in what else what) for kind, verb, what in found][1:]


def fails(client: httpx.Client, times: int, address: str = "127.0.0.1") -> list[int]:
    """Send wrong tokens from a loopback address; return the statuses."""
    with httpx.Client(
        base_url=client.base_url, transport=httpx.HTTPTransport(local_address=address, verify=NO_TLS), timeout=BOUND_S
    ) as wrong:
        return [wrong.get("/api/jobs/", headers={"Authorization": "Bearer x"}).status_code for _ in range(times)]


def test_job_of_token_is_recorded(client: httpx.Client) -> None:
    body = {"entrypoint": "true", "submission_id": "new", "metadata": {"user": "ada"}}
    assert client.post("/api/jobs/", json=body).status_code == 200
    assert client.post("/api/jobs/new/stop").status_code == 200
    assert client.delete("/api/jobs/new").status_code == 200
    found = entries(client)[1:]
    assert [(entry["verb"], entry["object"]) for entry in found] == [
        *(("submit", "job new"), ("stop", "job new"), ("delete", "job new"))
    ]
    assert {(entry["principal"], entry["kind"], entry["address"]) for entry in found} == {
        ("shared token", "token", "127.0.0.1")
    }
    facts = found[0]["after"]
    assert (facts.keys(), facts["user"], facts["entrypoint"]) == ({"sequence", "user", "entrypoint"}, "ada", "true")
    assert (found[1]["before"], found[1]["after"]) == (
        {"state": "WAITING", "stop_requested": False},
        {"state": "STOPPED", "stop_requested": True},
    )
    assert (found[2]["before"], found[2]["after"]) == ({**facts, "state": "STOPPED", "attempts": 0}, None)


def test_log_in_and_log_out_of_session_are_recorded(client: httpx.Client) -> None:
    session = httpx.Client(base_url=client.base_url, timeout=BOUND_S, verify=NO_TLS)
    with session:
        assert session.post(LOGIN, headers=AUTHORIZED).status_code == 200
        secret = session.cookies[COOKIE]
        assert session.post("/api/jobs/mine/stop").status_code == 405, "a session only reads"
        assert session.post(LOGOUT).status_code == 303
        session.cookies.set(COOKIE, "unknown")
        assert session.post(LOGOUT).status_code == 303
    assert actions(client) == [*(("token", "log-in", "session"), ("session", "log-out", "session"))]
    opened, closed = entries(client)[1:]
    assert opened["object"] == closed["object"] != "session"
    assert secret not in str(entries(client))


def test_log_in_by_form_is_recorded(client: httpx.Client) -> None:
    client.post(LOGIN_PAGE, data={"token": "wrong"})
    client.post(LOGIN_PAGE, data={"token": TOKEN})
    client.cookies.clear()
    assert actions(client) == [("token", "failed log-in", f"POST {LOGIN_PAGE}"), ("token", "log-in", "session")]


def test_ended_session_is_failed_log_in(client: httpx.Client) -> None:
    with httpx.Client(base_url=client.base_url, cookies={COOKIE: "x"}, timeout=BOUND_S, verify=NO_TLS) as old:
        assert old.get("/api/jobs/").status_code == 403
        assert old.get("/api/jobs/", headers={"Authorization": ""}).status_code == 403
    assert actions(client) == [("session", "failed log-in", "GET /api/jobs/")] * 2


def test_failed_log_ins_name_their_address(client: httpx.Client) -> None:
    assert fails(client, 2) == [403] * 2
    assert actions(client) == [("token", "failed log-in", "GET /api/jobs/")] * 2
    assert {(entry["principal"], entry["address"]) for entry in entries(client)[1:]} == {("unknown", "127.0.0.1")}


def test_records_of_failed_log_ins_are_bounded(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fails(client, auth.RECORDED_FAILURES + 2) == [403] * (auth.RECORDED_FAILURES + 2)
    assert len(actions(client)) == auth.RECORDED_FAILURES
    monkeypatch.setattr(auth, "_RECORDED_SECONDS", 0.0)
    fails(client, 1)
    assert len(actions(client)) == auth.RECORDED_FAILURES + 1


def test_request_without_token_is_not_recorded(client: httpx.Client) -> None:
    assert client.get("/api/jobs/", headers={"Authorization": ""}).status_code == 401
    assert actions(client) == []


def test_wrong_token_is_answered_while_database_is_down(closed_port: int) -> None:
    log = AuditLog(connect(f"postgresql+psycopg2://gateway@127.0.0.1:{closed_port}/gateway"))
    refusal = asyncio.run(TokenCheck(lambda: TOKEN, log).authenticate("Bearer x", SCOPE))
    assert isinstance(refusal, Response)
    assert refusal.status_code == 403


PACKAGE = "_ray_pkg_0123456789abcdef.zip"


def package() -> bytes:
    """A package of one file."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("train.py", "pass")
    return content.getvalue()


def test_first_upload_of_package_is_recorded(client: httpx.Client) -> None:
    content = package()
    for _ in range(2):
        assert client.put(f"/api/packages/gcs/{PACKAGE}", content=content).status_code == 200
    assert actions(client) == [("token", "upload", f"package {PACKAGE}")]
    assert entries(client)[-1]["after"]["bytes"] == len(content)


def test_package_that_cannot_be_recorded_is_not_stored(started: StartedGateway, client: httpx.Client) -> None:
    with started.store.engine.begin() as connection:
        connection.execute(text("ALTER TABLE audit RENAME TO hidden"))
    assert client.put(f"/api/packages/gcs/{PACKAGE}", content=package()).status_code == 503
    assert not list(started.folder.rglob(PACKAGE))


def test_actions_on_jobs_of_ray_are_recorded(started: StartedGateway, head: Head) -> None:
    started.head = head.address
    with started.running() as client:
        client.post("/api/jobs/of-ray/stop")
        client.delete("/api/jobs/of-ray")
        client.get("/api/jobs/of-ray")
        assert actions(client) == [("token", "stop", "job of-ray"), ("token", "delete", "job of-ray")]
        assert entries(client)[-1]["before"] is None


def test_log_is_read_in_windows(started: StartedGateway, client: httpx.Client) -> None:
    for job_id in ("b", "c"):
        started.add(job_id)
    assert [entry["object"] for entry in entries(client)] == ["job mine", "job b", "job c"]
    assert [entry["object"] for entry in entries(client, limit=1)] == ["job c"]
    last = entries(client, limit=1)[0]["sequence"]
    assert [entry["object"] for entry in entries(client, limit=1, before=last)] == ["job b"]
    assert entries(client, since=int(time.time()) + 3600) == []
    assert entries(client, since=10**18) == []
    assert len(entries(client, since=int(time.time()) - 3600)) == 3


@pytest.mark.parametrize("window", ["since=yesterday", "limit=0", "limit=1001", "before=-1", "limit=x"])
def test_invalid_window_is_rejected(client: httpx.Client, window: str) -> None:
    answer = client.get(f"/platform/audit?{window}")
    assert answer.status_code == 400
    assert window.split("=")[0] in answer.text


def test_entry_has_the_fields_of_its_description(client: httpx.Client) -> None:
    schema = schemas()["AuditEntry"]
    assert entries(client)[0].keys() == schema["properties"].keys() == set(schema["required"])
