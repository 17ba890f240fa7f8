"""Access keys of attempts at MinIO: each try of a job is compared with a table, and a key ends with its attempt."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from host import CHECKOUT, Stack, wait_for
from minio_keys import administers_nothing
from persons import Person, submit

from mlplatform.client.jobs import Jobs

SCRIPTS = CHECKOUT / "tests/scripts"

ENDS_SECONDS = 60
"""A key is refused within this time after the end of its attempt."""

PRINT_ACCOUNT = (
    "import os, time; "
    "print('account:', os.environ.get('AWS_ACCESS_KEY_ID'), os.environ.get('AWS_SECRET_ACCESS_KEY'), flush=True); "
    "time.sleep({seconds})"
)

ALLOWED = {
    *("write own", "delete own", "read another's", "list"),
    *("add for team", "read of team", "list team"),
}
"""Tries of `tries_at_storage.py` that succeed; MinIO must refuse all others."""


def client(stack: Stack, key: str, secret: str) -> Any:
    address = f"http://127.0.0.1:{stack.settings.minio_port}"
    return boto3.client("s3", "us-east-1", endpoint_url=address, aws_access_key_id=key, aws_secret_access_key=secret)


@pytest.fixture
def others(stack: Stack) -> Iterator[str]:
    """Folder of another job's checkpoints."""
    root = client(stack, stack.secret("minio_root_user"), stack.secret("minio_root_password"))
    folder = f"tries-{secrets.token_hex(4)}"
    root.put_object(Bucket="ray", Key=f"{folder}/weights", Body=b"weights")
    yield folder
    assert root.get_object(Bucket="ray", Key=f"{folder}/weights")["Body"].read() == b"weights"
    root.delete_object(Bucket="ray", Key=f"{folder}/weights")


def account_in(log: str) -> tuple[str, str] | None:
    found = re.search(r"account: (\S+) (\S+)", log)
    return (found[1], found[2]) if found else None


@pytest.mark.nightly
def test_job_of_person_uses_storage_as_table_says(
    stack: Stack, team: str, people: dict[str, Person], jobs: Jobs, others: str
) -> None:
    job = submit(people["alice"], "python", "tries_at_storage.py", others, team, "another-team", folder=SCRIPTS)
    assert jobs.wait(job, timeout_s=180).status == "SUCCEEDED", jobs.logs(job)[-4000:]
    found = re.search(r"tries: (.*)", jobs.logs(job))
    assert found
    tries = json.loads(found[1])
    assert {name for name, outcome in tries.items() if outcome == "done"} == ALLOWED, tries
    assert {outcome for name, outcome in tries.items() if name not in ALLOWED} == {"AccessDenied"}, tries


@pytest.mark.nightly
def test_key_administers_nothing_and_ends_with_its_attempt(stack: Stack, people: dict[str, Person], jobs: Jobs) -> None:
    job = submit(people["alice"], "python", "-c", PRINT_ACCOUNT.format(seconds=1000))
    try:
        key, secret = wait_for(lambda: account_in(jobs.logs(job)), "the account in the log")
        s3 = client(stack, key, secret)
        s3.list_objects_v2(Bucket="ray")
        administers_nothing(stack, key, secret, "attempts")
    finally:
        jobs.stop(job)
    jobs.wait(job, timeout_s=60)

    def refused() -> bool:
        try:
            s3.list_objects_v2(Bucket="ray")
        except ClientError as error:
            return bool(error.response["Error"]["Code"] == "InvalidAccessKeyId")
        return False

    wait_for(refused, "the key to be refused", ENDS_SECONDS)


def test_job_of_shared_token_uses_mounted_account(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.submit(["python", "-c", PRINT_ACCOUNT.format(seconds=0)], tmp_path)
    assert jobs.wait(job, timeout_s=120).status == "SUCCEEDED"
    assert account_in(jobs.logs(job)) == ("None", "None")
