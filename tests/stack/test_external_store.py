"""versitygw as the stack's object store: accounts from files, and messages about what it lacks."""

from __future__ import annotations

import pytest
from host import Stack, run

from mlplatform.secrets.credentials import read_s3_account
from mlplatform.settings.services import BUCKETS
from mlplatform_stack.services import STORE

pytestmark = pytest.mark.versitygw


def test_start_accepts_accounts_and_says_what_server_lacks(stack: Stack) -> None:
    assert STORE not in stack.by_service()
    prepared = run("docker", "logs", stack.container("storage-init")).stdout
    assert "each role's account is accepted" in prepared
    assert "rights and BUCKET_QUOTAS are left to its operator" in prepared
    for bucket in BUCKETS:
        assert f"the bucket {bucket} keeps no former versions" in prepared


def test_doctor_names_quotas_without_effect(stack: Stack) -> None:
    problems = stack.problems()
    assert f"BUCKET_QUOTAS=ray=1t has no effect at S3_ENDPOINT_URL={stack.settings.s3_endpoint_url}." in problems
    assert not [problem for problem in problems if "could not run" in problem]


def test_prune_finds_no_former_checkpoints(stack: Stack) -> None:
    (line,) = [line for line in stack.make("prune").stdout.splitlines() if "checkpoints that can still be" in line]
    assert line.split()[-3] == "0", line


def test_people_get_key_of_file(stack: Stack) -> None:
    assert stack.key_of_people() == read_s3_account(stack.root / "secrets" / "s3_people")
