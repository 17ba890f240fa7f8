"""Secrets of people on the live stack: files of their own jobs on every node, and nowhere else."""

from __future__ import annotations

import hashlib
import re
import secrets

import pytest
from host import SCRIPTS, Stack, wait_for
from persons import Person, administer, submit

from mlplatform.client.jobs import Jobs

WORKERS = ("ray-worker-0", "ray-worker-1")
# One text: the line of the job's log about a warm start may be written between the parts that `print` gets.
NAMES = "import os; print('folder: ' + str(os.environ.get('MLPLATFORM_SECRETS')))"


@pytest.fixture
def value(people: dict[str, Person]) -> str:
    """The value of a secret of alice."""
    alice, made = people["alice"], secrets.token_urlsafe(24)
    (alice.home / "value").write_text(made)
    printed = alice.types("mlplatform", "secrets", "put", "TOKEN", "--file", str(alice.home / "value"))
    assert "Stored TOKEN" in printed, printed
    return made


def folders(stack: Stack) -> list[str]:
    """Folders of secrets on the workers."""
    found = [stack.execute(name, "ls", "/dev/shm/mlplatform-secrets", check=False).stdout.split() for name in WORKERS]
    return [folder for of_one in found for folder in of_one]


def digests(log: str) -> dict[str, str]:
    """Digests that the processes have printed, by their names."""
    return dict(re.findall(r"^([\w-]+): ([0-9a-f]{64})\b", log, re.MULTILINE))


def test_secret_is_a_file_of_its_owners_jobs_only(
    stack: Stack, people: dict[str, Person], value: str, jobs: Jobs
) -> None:
    alice, tom, bob = (people[role] for role in ("alice", "tom", "bob"))
    hers = submit(alice, "python", "reads_secret.py", folder=SCRIPTS)
    others = [submit(person, "python", "-c", NAMES) for person in (tom, bob)]
    assert jobs.wait(hers, timeout_s=180).status == "SUCCEEDED", jobs.logs(hers)[-3000:]
    log = jobs.logs(hers)
    expected = hashlib.sha256(value.encode()).hexdigest()
    assert digests(log) == dict.fromkeys(("driver", "child", *WORKERS), expected), log
    assert log.count("['0o700', '0o600']") == 3
    for job_id in others:
        assert jobs.wait(job_id, timeout_s=180).status == "SUCCEEDED"
        assert "folder: None" in jobs.logs(job_id)

    details = f"/api/jobs/{hers}"
    seen = [people[role].asks("GET", details).text for role in ("alice", "lea", "tom", "bob")]
    seen += [stack.ray.get(path).text for path in (details, "/api/v0/runtime_envs", "/platform/audit")]
    seen += [alice.types("mlplatform", "secrets", "list"), administer(stack, "audit"), log, stack.report()]
    assert not [text for text in seen if value in text]
    for name in (*WORKERS, "ray-head"):
        files = stack.execute(name, "grep", "-rlF", value, "/tmp/ray", "/shared", check=False)
        assert files.stdout == "", name
    dump = ("pg_dump", "--username=postgres", "--data-only", "--table=secrets", "gateway")
    dumped = stack.execute("postgres", *dump).stdout
    assert alice.name in dumped
    assert value not in dumped
    wait_for(lambda: not folders(stack), "the secrets to be removed from the nodes", 60)


@pytest.mark.nightly
def test_secret_stays_readable_with_rotated_key(
    stack: Stack, people: dict[str, Person], value: str, jobs: Jobs
) -> None:
    key = stack.secret("gateway_secrets_key")
    printed = stack.make("rotate", "ONLY=gateway").stdout
    assert re.search(r"Gateway: [1-9]\d* secrets of people are encrypted with the new key", printed), printed
    assert stack.secret("gateway_secrets_key") != key
    hers = submit(people["alice"], "python", "reads_secret.py", folder=SCRIPTS)
    assert jobs.wait(hers, timeout_s=180).status == "SUCCEEDED", jobs.logs(hers)[-3000:]
    assert digests(jobs.logs(hers))["driver"] == hashlib.sha256(value.encode()).hexdigest()
