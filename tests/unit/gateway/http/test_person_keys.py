"""Access keys at MinIO that people get with their log-in: their rights, and when they end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from peopled import as_person, invite, log_in
from ray_head import BOUND_S, NO_TLS, served
from sqlalchemy import update
from sqlalchemy.orm import Session
from stand_in_minio import ACCOUNT, SECRET, StandInMinio
from started_gateway import S3_PORT, StartedGateway

from mlplatform.gateway.control import person_keys
from mlplatform.gateway.control.key_rights import person_policy
from mlplatform.gateway.people.schema import MemberRow, TokenRow


@pytest.fixture(autouse=True)
def short_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(person_keys, "_PASS_SECONDS", 0.05)


@pytest.fixture
def minio() -> StandInMinio:
    return StandInMinio()


@pytest.fixture
def started(tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch, minio: StandInMinio) -> Iterator[Any]:
    monkeypatch.setenv("MLPLATFORM_STORAGE", "s3://ray")
    with served(minio.app) as address:
        yield StartedGateway(tmp_path, f"http://127.0.0.1:{closed_port}", s3=(address, ACCOUNT, SECRET))


@pytest.fixture
def client(started: StartedGateway) -> Iterator[httpx.Client]:
    """A client of a gateway with two teams."""
    with started.running() as client:
        for team in ("vision", "audio"):
            client.post("/platform/teams", json={"name": team})
        yield client


def exchange(client: httpx.Client, **body: str) -> dict[str, Any]:
    answer = httpx.post(f"{client.base_url}/platform/tokens", json=body, verify=NO_TLS, timeout=BOUND_S)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def key_of(client: httpx.Client, name: str = "alice", **fields: Any) -> str:
    """Add a person who logs in; return the name of the key."""
    return log_in(client, invite(client, name, **(fields or {"team": "vision"}))).split("_")[1]


def until_gone(minio: StandInMinio, key: str) -> None:
    async def wait() -> None:
        async with asyncio.timeout(BOUND_S):
            while key in minio.keys:
                await asyncio.sleep(0.02)

    asyncio.run(wait())


def writable(minio: StandInMinio, key: str) -> set[str]:
    """Folders of teams to which a key may write."""
    adding = [each for each in minio.keys[key]["policy"]["Statement"] if "s3:PutObject" in each["Action"]]
    return set(re.findall(r"arn:aws:s3:::teams/([a-z]+)/\*", str([each["Resource"] for each in adding])))


def test_log_in_makes_key_with_rights_of_team(client: httpx.Client, minio: StandInMinio) -> None:
    answer = exchange(client, code=invite(client, "alice", team="vision"))
    (key,) = minio.keys.values()
    assert answer["token"] == f"mlp_{key['accessKey']}_{key['secretKey']}"
    assert key["policy"] == person_policy(["vision"])
    assert key["description"].startswith("person alice, ")
    assert answer["s3"] == {"endpoint_url": f"http://127.0.0.1:{S3_PORT}", "region": "us-east-1"}
    assert answer["s3_problem"] is None


def test_address_has_the_name_that_the_client_uses(client: httpx.Client) -> None:
    body = {"code": invite(client, "ada", administrator=True)}
    answer = client.post("/platform/tokens", json=body, headers={"Host": "ml.example.org:8265"})
    assert answer.json()["s3"]["endpoint_url"] == f"http://ml.example.org:{S3_PORT}"


def test_administrator_gets_no_more_than_others(client: httpx.Client, minio: StandInMinio) -> None:
    assert minio.keys[key_of(client, "ada", administrator=True)]["policy"] == person_policy([])


def test_log_in_succeeds_without_minio_and_says_so(client: httpx.Client, minio: StandInMinio) -> None:
    minio.status = 503
    answer = exchange(client, code=invite(client, "alice", team="vision"))
    assert answer["s3"] is None
    assert "is not ready (503, SlowDownWrite)" in answer["s3_problem"]
    assert as_person(client, answer["token"]).get("/api/jobs/").status_code == 200
    minio.status = None
    assert exchange(client, code=invite(client, "alice"))["s3"]


def test_other_object_store_gets_no_key_and_no_problem(started: StartedGateway, minio: StandInMinio) -> None:
    started.s3_external = "https://s3.example.org"
    with started.running() as client:
        answer = exchange(client, code=invite(client, "ada", administrator=True))
    assert (answer["s3"], answer["s3_problem"], minio.requests) == (None, None, [])


def test_key_ends_with_its_token(client: httpx.Client, minio: StandInMinio) -> None:
    key, other = key_of(client), key_of(client, "bob")
    assert client.delete(f"/platform/tokens/{key}").status_code == 200
    assert set(minio.keys) == {other}


def test_keys_of_removed_person_end(client: httpx.Client, minio: StandInMinio) -> None:
    keys, other = {key_of(client), key_of(client)}, key_of(client, "bob")
    assert set(minio.keys) == {*keys, other}
    client.delete("/platform/people/alice")
    assert set(minio.keys) == {other}


def test_replaced_token_loses_its_key(client: httpx.Client, minio: StandInMinio) -> None:
    former = key_of(client)
    answer = exchange(client, code=invite(client, "alice"), instead_of=former)
    assert set(minio.keys) == {answer["token"].split("_")[1]}


def test_key_of_expired_token_is_removed(started: StartedGateway, client: httpx.Client, minio: StandInMinio) -> None:
    key, other = key_of(client), key_of(client, "bob")
    with Session(started.store.engine) as session, session.begin():
        past = datetime.now(UTC) - timedelta(seconds=1)
        session.execute(update(TokenRow).where(TokenRow.id == key).values(expires=past))
    until_gone(minio, key)
    assert other in minio.keys


def test_key_is_removed_once_minio_is_available_again(client: httpx.Client, minio: StandInMinio) -> None:
    key, other = key_of(client), key_of(client, "bob")
    minio.status = 503
    assert client.delete(f"/platform/tokens/{key}").status_code == 200
    assert key in minio.keys
    minio.status = None
    until_gone(minio, key)
    assert other in minio.keys


def test_restarted_gateway_removes_keys_without_token_only(started: StartedGateway, minio: StandInMinio) -> None:
    with started.running() as client:
        client.post("/platform/teams", json={"name": "vision"})
        key, other = key_of(client), key_of(client, "bob")
        minio.status = 503
        client.delete(f"/platform/tokens/{key}")
    minio.status = None
    minio.keys["unknown"] = {}
    with started.running():
        until_gone(minio, key)
        until_gone(minio, "unknown")
    assert set(minio.keys) == {other}


def test_person_who_changes_teams_writes_to_the_new_one_only(client: httpx.Client, minio: StandInMinio) -> None:
    key = key_of(client)
    secret = minio.keys[key]["secretKey"]
    invite(client, "alice", team="audio")
    assert writable(minio, key) == {"vision", "audio"}
    client.delete("/platform/people/alice?team=vision")
    assert writable(minio, key) == {"audio"}
    assert minio.keys[key]["secretKey"] == secret


def test_rights_follow_once_minio_is_available_again(started: StartedGateway, minio: StandInMinio) -> None:
    with started.running() as client:
        client.post("/platform/teams", json={"name": "vision"})
        key = key_of(client)
        minio.status = 503
        client.delete("/platform/people/alice?team=vision")
        assert writable(minio, key) == {"vision"}
    minio.status = None

    async def until_changed() -> None:
        async with asyncio.timeout(BOUND_S):
            while writable(minio, key):
                await asyncio.sleep(0.02)

    with started.running():
        asyncio.run(until_changed())


def test_key_that_cannot_be_changed_is_removed(
    client: httpx.Client, minio: StandInMinio, caplog: pytest.LogCaptureFixture
) -> None:
    key, other = key_of(client), key_of(client, "bob")
    minio.may_change = False
    client.delete("/platform/people/alice?team=vision")
    assert set(minio.keys) == {other}
    assert key not in minio.keys
    assert any("The key of alice is removed; the next log-in makes another one." in text for text in caplog.messages)


def test_many_teams_fit_into_a_policy(started: StartedGateway, client: httpx.Client, minio: StandInMinio) -> None:
    key = key_of(client)
    names = [f"team-{number:02d}-{'x' * 22}" for number in range(30)]
    with Session(started.store.engine) as session, session.begin():
        for name in names:
            session.add(MemberRow(team=name, person="alice", role="member", joined=datetime.now(UTC)))
    invite(client, "alice")
    assert minio.keys[key]["policy"] == person_policy(["vision", *names[:23]])
