"""MLflow and a whole gateway: people's accounts there, changes that it reports, and digests of models."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet
from peopled import as_person, invite
from ray_head import BOUND_S, NO_TLS, served
from stand_in_mlflow import StandInMlflow
from started_gateway import MLFLOW_PASSWORD, StartedGateway
from waiting import wait_for

from mlplatform.contract import MLFLOW_CHANGES, MODEL_DIGESTS, PERSON_TOKEN
from mlplatform_gateway.mlflow import accounts as mlflow_accounts


@pytest.fixture
def mlflow() -> StandInMlflow:
    return StandInMlflow("gateway", MLFLOW_PASSWORD)


@pytest.fixture
def started(tmp_path: Path, mlflow: StandInMlflow, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartedGateway]:
    monkeypatch.setattr(mlflow_accounts, "_PASS_SECONDS", 0.1)
    with served(mlflow.app) as address:
        key = Fernet.generate_key().decode()
        yield StartedGateway(tmp_path, "http://127.0.0.1:9", secrets_key=key, mlflow=address)


def log_in(client: httpx.Client, name: str, **values: Any) -> dict[str, Any]:
    """Log a person in, who is added if new; return the answer."""
    code = invite(client, name, administrator=True)
    body = {"code": code, **values}
    answer = httpx.post(f"{client.base_url}/platform/tokens", json=body, verify=NO_TLS, timeout=BOUND_S)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def revoke(client: httpx.Client, token: str) -> None:
    assert client.delete(f"/platform/tokens/{token.split('_')[1]}").status_code == 200


def test_person_has_one_account_from_first_log_in_to_removal(started: StartedGateway, mlflow: StandInMlflow) -> None:
    with started.running() as gateway:
        first = log_in(gateway, "ada")
        password = first["mlflow_password"]
        assert PERSON_TOKEN.fullmatch(password)
        assert mlflow.passwords["ada"] == password != first["token"]
        assert log_in(gateway, "ada")["mlflow_password"] == password, "another machine has another password"
        assert log_in(gateway, "bob")["mlflow_password"] != password
        assert gateway.delete("/platform/people/ada").status_code == 200
        assert mlflow.passwords.keys() == {"gateway", "job", "bob"}
        assert log_in(gateway, "ada")["mlflow_password"] != password, "a later person has the account"


def test_password_changes_with_a_lost_token_not_at_log_out(started: StartedGateway, mlflow: StandInMlflow) -> None:
    with started.running() as gateway:
        first, second = log_in(gateway, "ada"), log_in(gateway, "ada")
        with as_person(gateway, second["token"]) as own:
            revoke(own, second["token"])
        third = log_in(gateway, "ada", instead_of=first["token"].split("_")[1])
        assert mlflow.passwords["ada"] == first["mlflow_password"] == third["mlflow_password"]
        revoke(gateway, third["token"])
        assert mlflow.passwords["ada"] != first["mlflow_password"]
        assert log_in(gateway, "ada")["mlflow_password"] == mlflow.passwords["ada"]


def test_accounts_follow_once_mlflow_answers(started: StartedGateway, mlflow: StandInMlflow) -> None:
    right = mlflow.passwords["gateway"]
    with started.running() as gateway:
        log_in(gateway, "bob")
        mlflow.passwords["gateway"] = "another for a while"
        given = log_in(gateway, "ada")["mlflow_password"]
        assert gateway.delete("/platform/people/bob").status_code == 200
        assert "ada" not in mlflow.passwords
        assert "bob" in mlflow.passwords
        mlflow.passwords["gateway"] = right
        wait_for(lambda: mlflow.passwords.get("ada") == given, "account")
        wait_for(lambda: "bob" not in mlflow.passwords, "removal")


def test_accounts_that_others_made_stay(started: StartedGateway, mlflow: StandInMlflow) -> None:
    mlflow.passwords["carol"] = "made by the administrator of MLflow"
    with started.running() as gateway:
        log_in(gateway, "ada")
        assert gateway.delete("/platform/people/ada").status_code == 200
    assert mlflow.passwords.keys() == {"gateway", "job", "carol"}


def test_password_outlives_the_key_until_the_next_log_in(started: StartedGateway, mlflow: StandInMlflow) -> None:
    with started.running() as gateway:
        first = log_in(gateway, "ada")["mlflow_password"]
    started.secrets_key = Fernet.generate_key().decode()
    mlflow.requests.clear()
    with started.running() as gateway:
        wait_for(lambda: mlflow.requests.count(("GET", "/api/2.0/mlflow/users/list")) > 1, "comparison of accounts")
        assert mlflow.passwords["ada"] == first
        second = log_in(gateway, "ada")["mlflow_password"]
        assert mlflow.passwords["ada"] == second != first


def test_reported_change_is_in_audit_log_and_digests_follow(started: StartedGateway, mlflow: StandInMlflow) -> None:
    change: dict[str, Any] = {"account": "ada", "address": "10.0.0.9", "values": {"name": "net"}}
    change |= {"method": "POST", "path": "/api/2.0/mlflow/model-versions/create"}
    with started.running() as gateway:
        wait_for(lambda: ("GET", "/api/2.0/mlflow/model-versions/search") in mlflow.requests, "first search")
        source = mlflow.register("net", {"MLmodel": b"flavor"}, created=7)
        with as_person(gateway, MLFLOW_PASSWORD) as server:
            assert server.post(MLFLOW_CHANGES, json=change).json() == {"recorded": True}
            wrongs = ({"values": {"a": 1}}, {"path": "x" * 1001}, {"account": "a\0b"}, {"address": None})
            for wrong in ({**change, **fault} for fault in wrongs):
                assert server.post(MLFLOW_CHANGES, json=wrong).status_code == 400
        (row,) = [row for row in gateway.get("/platform/audit").json()["entries"] if row["kind"] == "mlflow"]
        assert (row["principal"], row["verb"], row["object"]) == ("ada", "POST", change["path"])
        assert (row["address"], row["after"]) == ("10.0.0.9", {"name": "net"})
        asked = {"source": source, "created": 7}
        files = wait_for(lambda: gateway.get(MODEL_DIGESTS, params=asked).json()["files"], "digest")
        assert files == {"MLmodel": hashlib.sha256(b"flavor").hexdigest()}
        assert gateway.get(MODEL_DIGESTS, params={**asked, "created": 8}).json() == {"files": None, "recorded": None}
        for wrong in ({"created": "soon"}, {"source": f"{source}\0"}):
            assert gateway.get(MODEL_DIGESTS, params={**asked, **wrong}).status_code == 400
