"""The S3 key of people: who gets it, and when it is replaced."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from peopled import as_person, invite, log_in
from ray_head import served
from stand_in_minio import ACCOUNT, SECRET, StandInMinio
from started_gateway import S3_PORT, StartedGateway
from waiting import wait_for

from mlplatform_gateway.people import s3_key as people_key

PATH = "/platform/storage-credentials"


@pytest.fixture(autouse=True)
def short_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(people_key, "_PASS_SECONDS", 0.2)


@pytest.fixture
def minio() -> StandInMinio:
    return StandInMinio()


@pytest.fixture
def started(tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch, minio: StandInMinio) -> Iterator[Any]:
    monkeypatch.setenv("MLPLATFORM_STORAGE", str(tmp_path / "storage"))
    with served(minio.app) as address:
        yield StartedGateway(tmp_path, f"http://127.0.0.1:{closed_port}", s3=(address, ACCOUNT, SECRET))


def person(client: httpx.Client, name: str = "alice") -> httpx.Client:
    """Add an administrator, who logs in; return a client with the token."""
    return as_person(client, log_in(client, invite(client, name, administrator=True)))


def key_of(client: httpx.Client) -> dict[str, str]:
    answer = client.post(PATH)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


@pytest.fixture
def ada(client: httpx.Client, closed_port: int) -> httpx.Client:
    return person(client, "ada")


def test_all_people_get_one_key_without_rights_to_administer(
    client: httpx.Client, ada: httpx.Client, minio: StandInMinio
) -> None:
    key = key_of(ada)
    assert key_of(client) == key == key_of(ada)
    (made,) = minio.keys.values()
    assert (made["accessKey"], made["secretKey"]) == (key["access_key"], key["secret_key"])
    assert len(key["access_key"]) == 20
    assert len(key["secret_key"]) == 40
    assert {"Effect": "Deny", "Action": ["admin:*"]} in made["policy"]["Statement"]


def test_nobody_else_gets_the_key(client: httpx.Client, minio: StandInMinio) -> None:
    assert as_person(client, "").post(PATH).status_code == 401
    assert as_person(client, "wrong").post(PATH).status_code == 403
    # A session of a browser may only read, and the key is not among what it reads.
    assert client.get(PATH).json() == {"s3": {"endpoint_url": f"http://127.0.0.1:{S3_PORT}", "region": "us-east-1"}}
    assert minio.keys == {}


def test_address_has_the_name_that_the_client_uses(client: httpx.Client) -> None:
    answer = client.get(PATH, headers={"Host": "ml.example.org:8265"})
    assert answer.json()["s3"]["endpoint_url"] == f"http://ml.example.org:{S3_PORT}"


def test_removal_of_a_person_replaces_the_key(client: httpx.Client, ada: httpx.Client, minio: StandInMinio) -> None:
    person(client)
    former = key_of(ada)
    assert client.delete("/platform/people/alice").json() == {"removed": "alice", "s3_key_in_file": False}
    assert former["access_key"] not in minio.keys
    assert key_of(ada)["access_key"] != former["access_key"]
    assert len(minio.keys) == 1


def test_what_ends_no_persons_access_keeps_the_key(client: httpx.Client, ada: httpx.Client) -> None:
    client.post("/platform/teams", json={"name": "vision"})
    token = log_in(client, invite(client, "bob", team="vision"))
    key = key_of(ada)
    client.delete("/platform/people/bob?team=vision")
    client.delete(f"/platform/tokens/{token.split('_')[1]}")
    time.sleep(0.5)  # a pass or two
    assert key_of(ada) == key


def test_key_is_replaced_once_minio_is_available_again(
    client: httpx.Client, ada: httpx.Client, minio: StandInMinio
) -> None:
    person(client)
    former = key_of(ada)["access_key"]
    minio.status = 503
    assert client.delete("/platform/people/alice").status_code == 200
    assert former in minio.keys
    assert ada.post(PATH).status_code == 503
    minio.status = None
    wait_for(lambda: former not in minio.keys, "the end of the former key")
    assert key_of(ada)["access_key"] != former


def test_restarted_gateway_keeps_the_key_unless_a_person_was_removed(
    started: StartedGateway, minio: StandInMinio
) -> None:
    with started.running() as client:
        ada, _ = person(client, "ada"), person(client)
        token = ada.headers["authorization"].removeprefix("Bearer ")
        key = key_of(ada)
    with started.running() as client:
        assert key_of(as_person(client, token)) == key
        minio.status = 503
        client.delete("/platform/people/alice")
    minio.status = None
    with started.running() as client:
        wait_for(lambda: key["access_key"] not in minio.keys, "the end of the former key")
        assert key_of(as_person(client, token)) != key


def test_key_of_a_former_account_and_foreign_ones_are_removed(started: StartedGateway, minio: StandInMinio) -> None:
    with started.running() as client:
        former = key_of(client)["access_key"]
    minio.keys["foreign"] = {}
    started.s3 = (started.s3[0], ACCOUNT, "the secret after a rotation") if started.s3 else None
    minio.secret = "the secret after a rotation"
    with started.running() as client:
        wait_for(lambda: minio.keys.keys().isdisjoint({former, "foreign"}), "the end of both keys")
        key = key_of(client)
    assert set(minio.keys) == {key["access_key"]}


def test_key_that_its_holder_deleted_is_made_again(client: httpx.Client, minio: StandInMinio) -> None:
    former = key_of(client)["access_key"]
    del minio.keys[former]
    time.sleep(0.3)
    assert key_of(client)["access_key"] in minio.keys


def test_rejected_account_is_named(client: httpx.Client, minio: StandInMinio) -> None:
    minio.status = 403
    answer = client.post(PATH)
    assert answer.status_code == 503
    assert "rejects the gateway's account (403)" in answer.text


def test_key_at_another_server_is_that_of_the_file(started: StartedGateway, minio: StandInMinio) -> None:
    started.s3_endpoint_url = "https://s3.example.org"
    with started.running() as client:
        assert client.get(PATH).json()["s3"]["endpoint_url"] == "https://s3.example.org"
        assert key_of(client) == {"access_key": "people", "secret_key": "of people"}
        person(client)
        assert client.delete("/platform/people/alice").json()["s3_key_in_file"]
        (started.folder / "s3_people").write_text("# not filled in\n")
        assert client.post(PATH).status_code == 503
    assert minio.requests == []


def test_platform_with_folders_has_no_key(started: StartedGateway) -> None:
    started.s3 = None
    with started.running() as client:
        assert client.get(PATH).json() == {"s3": None}
        assert client.post(PATH).status_code == 400
