"""The S3 key of people, as clients get it by the profile that `mlplatform login` has written, and its replacement."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator

import pytest
from host import Stack, wait_for
from persons import Person

pytestmark = pytest.mark.minio


@pytest.fixture
def checkpoint(stack: Stack) -> Iterator[str]:
    """Folder of a job's checkpoints."""
    folder = f"profile-{secrets.token_hex(4)}"
    place = {"Bucket": "ray", "Key": f"{folder}/weights"}
    stack.s3.put_object(**place, Body=b"weights")
    yield folder
    stack.s3.delete_object(**place)


@pytest.fixture
def alice(people: dict[str, Person]) -> Person:
    return people["alice"]


def key_of(person: Person) -> dict[str, str]:
    return dict(json.loads(person.types("mlplatform", "s3-credentials")))


def test_pyarrow_uses_the_profile(alice: Person, checkpoint: str) -> None:
    code = (
        "import sys, time, pyarrow.fs as fs; began = time.monotonic(); "
        "files = fs.S3FileSystem(endpoint_override=sys.argv[1], region='us-east-1'); "
        "[files.open_input_stream(sys.argv[2]).read() for _ in range(200)]; "
        "print('read in', time.monotonic() - began)"
    )
    endpoint = f"http://127.0.0.1:{alice.stack.settings.s3_port}"
    printed = alice.types("python", "-c", code, endpoint, f"ray/{checkpoint}/weights")
    found = re.search(r"read in ([\d.]+)", printed)
    # Without an end of the key, each read would start our command.
    assert found, printed
    assert float(found[1]) < 60, printed


def test_restarted_gateway_keeps_the_key(stack: Stack, alice: Person) -> None:
    key = key_of(alice)
    stack.compose("restart", "gateway")
    wait_for(lambda: "AccessKeyId" in alice.types("mlplatform", "s3-credentials"), "the gateway", 120)
    assert key_of(alice)["SecretAccessKey"] == key["SecretAccessKey"]


def test_log_out_removes_the_profile(alice: Person) -> None:
    assert "Logged out" in alice.types("mlplatform", "logout")
    assert list((alice.home / ".aws").iterdir()) == []


def test_data_sets_are_stored_with_a_log_in_alone(alice: Person) -> None:
    assert (alice.home / ".aws/config").stat().st_mode & 0o077 == 0
    folder, name = alice.home / "photos", f"photos-{secrets.token_hex(3)}"
    folder.mkdir()
    (folder / "one").write_text("one")
    stored = alice.types("mlplatform", "data", "put", str(folder), name)
    assert f"{name}@" in stored, stored
    assert name in alice.types("mlplatform", "data", "list")
    fetched = alice.types("mlplatform", "data", "get", name, str(alice.home / "fetched"))
    assert (alice.home / "fetched/one").read_text() == "one", fetched
