"""Nodes of Ray without the account for S3 that all jobs share: jobs of people use those of their attempts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from host import CHECKOUT, Stack
from persons import Person, submit

from mlplatform.client.jobs import Jobs

pytestmark = pytest.mark.nightly

SCRIPTS = CHECKOUT / "tests/scripts"

NODES = ("ray-head", "ray-worker-0", "ray-worker-1")

FILES = ("/run/secrets/minio_credentials",)


@pytest.fixture
def without_accounts(stack: Stack) -> Iterator[Stack]:
    stack.set_env(NODE_ACCOUNTS="no_account")
    stack.up()
    yield stack
    stack.set_env(NODE_ACCOUNTS="")
    stack.up()


def test_jobs_of_people_need_no_account_of_their_node(
    without_accounts: Stack, people: dict[str, Person], jobs: Jobs, tmp_path: Path
) -> None:
    stack, alice = without_accounts, people["alice"]
    for node in NODES:
        contents = stack.execute(node, "cat", *FILES).stdout
        assert contents.count("# The nodes of Ray have this file instead") == len(FILES)
        assert "=" not in contents.replace("NODE_ACCOUNTS=no_account", "")

    job = submit(alice, "python", "saves_when_asked.py", "--batches=30", folder=SCRIPTS)
    assert jobs.wait(job, timeout_s=300).status == "SUCCEEDED", jobs.logs(job)[-4000:]
    (run,) = stack.runs_of(job)
    assert (run["info"]["user_id"], run["info"]["status"]) == (alice.name, "FINISHED")
    assert stack.objects("ray", f"{job}/"), "the training stored no checkpoint"

    shared = jobs.submit(["python", "-c", "import boto3; boto3.client('s3').list_objects(Bucket='ray')"], tmp_path)
    assert jobs.wait(shared, timeout_s=120).status == "FAILED"
    assert "NoCredentials" in jobs.logs(shared)
