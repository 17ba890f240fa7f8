"""S3 accounts of people at MinIO, used by boto3 as `mlplatform login` has written them, and compared with a table."""

from __future__ import annotations

import configparser
import json
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from figures import count
from host import CHECKOUT, Stack, wait_for
from minio_keys import administers_nothing
from persons import Person, administer, log_in

pytestmark = pytest.mark.nightly

SCRIPT = CHECKOUT / "tests/scripts/tries_with_profile.py"

ENDS_SECONDS = 60
"""A key is refused within this time after the end of its token; a change of teams has taken effect by then."""

SHARED = {
    *("read checkpoint", "list checkpoints"),
    *("add data set", "add data set in parts", "read data set", "list data sets"),
}
TEAM = {"add for team", "add for team in parts", "read of team", "list team", "delete of team", "delete parts of team"}
"""Tries of `tries_with_profile.py` that succeed, the second for members of the team; MinIO must refuse all others."""


def root_client(stack: Stack) -> Any:
    address = f"http://127.0.0.1:{stack.settings.minio_port}"
    account = {"aws_access_key_id": stack.secret("minio_root_user")}
    account |= {"aws_secret_access_key": stack.secret("minio_root_password")}
    return boto3.client("s3", "us-east-1", endpoint_url=address, **account)


@pytest.fixture
def teams(stack: Stack) -> tuple[str, str]:
    """Two teams."""
    names = f"keys-{secrets.token_hex(3)}", f"others-{secrets.token_hex(3)}"
    for name in names:
        administer(stack, "teams", "add", name)
    return names


@pytest.fixture
def objects(stack: Stack, teams: tuple[str, str]) -> Iterator[str]:
    """Folder of a job's checkpoints, and an object of the second team; neither may be changed."""
    root, folder = root_client(stack), f"tries-{secrets.token_hex(4)}"
    places = [{"Bucket": "ray", "Key": f"{folder}/weights"}, {"Bucket": "teams", "Key": f"{teams[1]}/kept"}]
    for place in places:
        root.put_object(**place, Body=b"weights")
    yield folder
    for place in places:
        assert root.get_object(**place)["Body"].read() == b"weights"
        root.delete_object(**place)
    for entry in root.list_objects_v2(Bucket="datasets", Prefix="tries-").get("Contents", []):
        root.delete_object(Bucket="datasets", Key=entry["Key"])


@pytest.fixture
def alice(stack: Stack, teams: tuple[str, str], tmp_path: Path) -> Iterator[Person]:
    """A member of the first team, who has logged in."""
    (tmp_path / "home").mkdir()
    person = log_in(stack, tmp_path / "home", "alice", teams[0])
    yield person
    administer(stack, "people", "remove", person.name)


@pytest.fixture(params=["lead", "administrator"])
def superior(request: pytest.FixtureRequest, stack: Stack, teams: tuple[str, str], tmp_path: Path) -> Iterator[Person]:
    """The lead of the first team, and an administrator in it."""
    options = {"lead": "--lead", "administrator": "--admin"}
    (tmp_path / "superior").mkdir()
    person = log_in(stack, tmp_path / "superior", request.param, teams[0], options[request.param])
    yield person
    administer(stack, "people", "remove", person.name)


def tries(person: Person, *arguments: str) -> dict[str, str]:
    printed = person.types("python", str(SCRIPT), *arguments)
    found = re.search(r"tries: (.*)", printed)
    assert found, printed[-3000:]
    outcomes: dict[str, str] = json.loads(found[1])
    count("tries with accounts of people at MinIO", len(outcomes))
    return outcomes


def allowed(outcomes: dict[str, str]) -> set[str]:
    """Tries that succeeded; the others must have been refused for lack of rights."""
    done = {name for name, outcome in outcomes.items() if outcome == "done"}
    assert {outcomes[name] for name in outcomes.keys() - done} <= {"AccessDenied"}, outcomes
    return done


def key_of(person: Person) -> tuple[str, str]:
    config = configparser.ConfigParser()
    config.read(person.home / ".aws/credentials")
    section = config["default"]
    return section["aws_access_key_id"], section["aws_secret_access_key"]


def refused(person: Person) -> bool:
    code = "import boto3; print('listed', len(boto3.client('s3').list_objects_v2(Bucket='ray', MaxKeys=1)))"
    return "InvalidAccessKeyId" in person.types("python", "-c", code)


def test_person_uses_storage_as_table_says(stack: Stack, teams: tuple[str, str], objects: str, alice: Person) -> None:
    assert (alice.home / ".aws/credentials").stat().st_mode & 0o077 == 0
    outcomes = tries(alice, objects, *teams)
    assert allowed(outcomes) == SHARED | TEAM, outcomes


def test_lead_and_administrator_use_storage_as_members_do(
    teams: tuple[str, str], objects: str, superior: Person
) -> None:
    outcomes = tries(superior, objects, *teams)
    assert allowed(outcomes) == SHARED | TEAM, outcomes


def test_person_who_changes_teams_loses_rights_of_the_former(
    stack: Stack, teams: tuple[str, str], objects: str, alice: Person
) -> None:
    first, second = teams
    administer(stack, "people", "add", alice.name, "--team", second)
    administer(stack, "people", "remove", alice.name, "--team", first)
    began = time.monotonic()
    wait_for(
        lambda: "list team" not in allowed(tries(alice, objects, first, "nobody")), "the end of rights", ENDS_SECONDS
    )
    count("seconds until a person lost the rights of a team", round(time.monotonic() - began))
    # The first team is the other one now, and `kept` of the second is not touched by these tries.
    assert allowed(tries(alice, objects, second, first)) == SHARED | TEAM
    administer(stack, "people", "remove", alice.name, "--team", second)
    wait_for(lambda: allowed(tries(alice, objects, second, first)) == SHARED, "the end of rights", ENDS_SECONDS)


def test_key_administers_nothing_and_ends_with_its_token(stack: Stack, alice: Person) -> None:
    key, secret = key_of(alice)
    assert alice.token_file.read_text().strip() == f"mlp_{key}_{secret}"
    assert not refused(alice)
    administers_nothing(stack, key, secret, "people")
    administer(stack, "tokens", "revoke", key)
    began = time.monotonic()
    wait_for(lambda: refused(alice), "the key to be refused", ENDS_SECONDS)
    count("seconds until MinIO refused the key of a revoked token", round(time.monotonic() - began))


def test_log_out_ends_the_key_and_removes_the_profile(stack: Stack, alice: Person, tmp_path: Path) -> None:
    kept = Person(alice.name, stack, tmp_path / "copy")
    (kept.home / ".aws").mkdir(parents=True)
    for name in ("credentials", "config"):
        (kept.home / ".aws" / name).write_text((alice.home / ".aws" / name).read_text())
    assert not refused(kept)
    assert "Logged out" in alice.types("mlplatform", "logout")
    assert list((alice.home / ".aws").iterdir()) == []
    wait_for(lambda: refused(kept), "the key to be refused", ENDS_SECONDS)


def test_restarted_gateway_removes_key_of_revoked_token_only(
    stack: Stack, teams: tuple[str, str], alice: Person, tmp_path: Path
) -> None:
    (tmp_path / "bob").mkdir()
    bob = log_in(stack, tmp_path / "bob", "bob", teams[0])
    # As a gateway leaves it that ends before it has removed the key.
    revoke = f"UPDATE tokens SET revoked = now() WHERE id = '{key_of(bob)[0]}'"
    stack.execute("postgres", "psql", "-U", "postgres", "-d", "gateway", "-c", revoke)
    stack.compose("restart", "gateway")
    wait_for(lambda: refused(bob), "the key to be refused", 2 * ENDS_SECONDS)
    assert not refused(alice)
    administer(stack, "people", "remove", bob.name)


def test_data_sets_are_stored_with_a_log_in_alone(alice: Person) -> None:
    folder, name = alice.home / "photos", f"photos-{secrets.token_hex(3)}"
    folder.mkdir()
    (folder / "one").write_text("one")
    stored = alice.types("mlplatform", "data", "put", str(folder), name)
    assert f"{name}@" in stored, stored
    assert name in alice.types("mlplatform", "data", "list")
    fetched = alice.types("mlplatform", "data", "get", name, str(alice.home / "fetched"))
    assert (alice.home / "fetched/one").read_text() == "one", fetched
