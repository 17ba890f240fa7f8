"""Secrets of people: over HTTP, from the command line, and as files of an attempt."""

import asyncio
import base64
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from cryptography.fernet import Fernet
from peopled import as_person, invite, log_in, populate, submit, typed
from sqlalchemy import text
from started_gateway import StartedGateway

from mlplatform.compat import ray_setup_worker
from mlplatform.secrets import secret_folder
from mlplatform_gateway.jobs.attempt_tokens import AttemptTokens
from mlplatform_gateway.jobs.states import Outcome
from mlplatform_gateway.people.secrets import MOST_BYTES, MOST_SECRETS
from mlplatform_stack.bootstrap.rotation import encrypt_again

VALUE = b"\x00of-alice-only\n"
OF_ATTEMPT = "/platform/attempt/secrets"
BOUND_S = 60
NOON = "2026-11-26 12:00:00.000000"

READS = """
import os, stat
folder = os.environ["MLPLATFORM_SECRETS"]
for path in (folder, f"{folder}/KEY"):
    print(oct(stat.S_IMODE(os.stat(path).st_mode)))
print(open(f"{folder}/KEY", "rb").read())
"""


@dataclass
class Platform:
    """A gateway with people, each with a client."""

    started: StartedGateway
    administrator: httpx.Client
    tokens: dict[str, str]
    alice: httpx.Client
    bob: httpx.Client

    def attempt(self, person: str, job_id: str) -> dict[str, str]:
        """Submit a job of a person and begin its first attempt; return the variables that Ray gets for it."""
        with as_person(self.administrator, self.tokens[person]) as client:
            assert submit(client, job_id).status_code == 200
        return asyncio.run(self._begun(job_id))

    async def _begun(self, job_id: str) -> dict[str, str]:
        store = self.started.store
        attempt = await store.begin_attempt(job_id)
        assert attempt is not None
        job = await store.get(job_id)
        account = await AttemptTokens(store.engine, "http://gateway:8265").variables(job, attempt)
        if secret_folder.FOLDER in account:
            # Other tests on this machine use the same folders of folders.
            account[secret_folder.FOLDER] = f"{secret_folder.ROOT}/test-{uuid.uuid4()}/attempt"
        return account

    def asks(self, token: str) -> httpx.Response:
        """Ask for the secrets of an attempt."""
        return self.administrator.get(OF_ATTEMPT, headers={"Authorization": f"Bearer {token}"})


@pytest.fixture
def platform(started: StartedGateway) -> Iterator[Platform]:
    started.secrets_key = Fernet.generate_key().decode()
    with started.running() as client:
        tokens = populate(client)
        with as_person(client, tokens["alice"]) as alice, as_person(client, tokens["bob"]) as bob:
            yield Platform(started, client, tokens, alice, bob)


def decoded(answer: httpx.Response) -> dict[str, bytes]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return {name: base64.b64decode(value) for name, value in answer.json()["secrets"].items()}


def test_only_attempts_of_owner_read_values(platform: Platform) -> None:
    assert platform.alice.put("/platform/secrets/KEY", content=VALUE).json() == {"set": "KEY"}
    assert platform.bob.put("/platform/secrets/OTHER", content=b"of-bob").status_code == 200
    hers, his = platform.attempt("alice", "hers"), platform.attempt("bob", "his")
    assert decoded(platform.asks(hers[secret_folder.TOKEN])) == {"KEY": VALUE}
    assert decoded(platform.asks(his[secret_folder.TOKEN])) == {"OTHER": b"of-bob"}
    listed = platform.alice.get("/platform/secrets")
    (entry,) = listed.json()["secrets"]
    assert (entry["name"], entry["bytes"], entry["readable"]) == ("KEY", len(VALUE), True)
    for client in (platform.alice, platform.bob, platform.administrator):
        assert not client.get("/platform/secrets/KEY").is_success
    for token in platform.tokens.values():
        refused = platform.asks(token)
        assert (refused.status_code, refused.text[:27]) == (403, "Only jobs, with the tokens ")
    assert httpx.get(f"{platform.administrator.base_url}{OF_ATTEMPT}").status_code == 401


def test_secrets_end_with_the_person(platform: Platform) -> None:
    platform.alice.put("/platform/secrets/KEY", content=VALUE)
    token = platform.attempt("alice", "hers")[secret_folder.TOKEN]
    assert platform.administrator.delete("/platform/people/alice").status_code == 200
    assert platform.asks(token).text.endswith("The token of this attempt has ended, because alice was removed.")
    again = log_in(platform.administrator, invite(platform.administrator, "alice", team="vision"))
    with as_person(platform.administrator, again) as another:
        assert another.get("/platform/secrets").json() == {"secrets": []}
    assert platform.asks(token).status_code == 403


def test_jobs_without_secrets_get_no_variable(platform: Platform) -> None:
    platform.alice.put("/platform/secrets/KEY", content=VALUE)
    assert secret_folder.FOLDER not in platform.attempt("bob", "his")
    assert platform.alice.delete("/platform/secrets/KEY").json() == {"removed": "KEY"}
    assert secret_folder.FOLDER not in platform.attempt("alice", "hers")


@pytest.mark.parametrize(
    ("name", "value", "status", "sentence"),
    [
        ("a b", b"x", 400, "Invalid name of a secret 'a b': use up to 100 letters"),
        (".hidden", b"x", 400, "Invalid name of a secret '.hidden'"),
        ("a" * 101, b"x", 400, "Invalid name of a secret"),
        ("KEY", b"", 400, "The value of secret 'KEY' is empty"),
        ("KEY", bytes(MOST_BYTES + 1), 413, "The body is larger than 0.0625 MiB; a secret has 64 KiB at most"),
    ],
)
def test_invalid_secret_is_rejected(platform: Platform, name: str, value: bytes, status: int, sentence: str) -> None:
    answer = platform.alice.put(f"/platform/secrets/{name}", content=value)
    assert (answer.status_code, answer.text[: len(sentence)]) == (status, sentence)
    assert platform.alice.get("/platform/secrets").json() == {"secrets": []}


def test_number_of_secrets_is_limited(platform: Platform) -> None:
    with platform.started.store.engine.begin() as connection:
        rows = [{"name": f"K{number}"} for number in range(MOST_SECRETS - 1)]
        connection.execute(text(f"INSERT INTO secrets VALUES ('alice', :name, 'x', 1, '{NOON}')"), rows)
    assert platform.alice.put("/platform/secrets/K0", content=b"x").status_code == 200
    assert platform.alice.put("/platform/secrets/LAST", content=b"x").status_code == 200
    refused = platform.alice.put("/platform/secrets/ONE_MORE", content=b"x")
    assert (refused.status_code, refused.text[:27]) == (400, "alice has 100 secrets alrea")
    assert platform.alice.put("/platform/secrets/K0", content=bytes(MOST_BYTES)).status_code == 200


def test_missing_secret_is_not_removed(platform: Platform) -> None:
    platform.alice.put("/platform/secrets/KEY", content=VALUE)
    for name in ("KEY", "a b"):
        refused = platform.bob.delete(f"/platform/secrets/{name}")
        sentence = f"Secret {name!r} does not exist; `mlplatform secrets list` lists yours."
        assert (refused.status_code, refused.text) == (404, sentence)


def test_shared_token_has_no_secrets(platform: Platform) -> None:
    shared = platform.administrator
    for answer in (
        shared.get("/platform/secrets"),
        shared.put("/platform/secrets/KEY", content=b"x"),
        shared.delete("/platform/secrets/KEY"),
    ):
        assert (answer.status_code, answer.text[:30]) == (400, "Secrets are for people: log in")


def test_gateway_without_key_stores_nothing(started: StartedGateway) -> None:
    with started.running() as client, as_person(client, populate(client)["alice"]) as alice:
        refused = alice.put("/platform/secrets/KEY", content=b"x")
        assert (refused.status_code, refused.text[:33]) == (400, "This platform stores no secrets, ")
        assert alice.get("/platform/secrets").json() == {"secrets": []}


def test_database_and_audit_log_have_no_value(platform: Platform) -> None:
    secret = b"of-alice-only"
    platform.alice.put("/platform/secrets/KEY", content=secret)
    platform.alice.put("/platform/secrets/KEY", content=secret * 2)
    platform.alice.delete("/platform/secrets/KEY")
    platform.alice.put("/platform/secrets/KEY", content=secret)
    files = [path for path in platform.started.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if secret in path.read_bytes()]
    rows = platform.administrator.get("/platform/audit").json()["entries"]
    assert [(row["verb"], row["before"], row["after"]) for row in rows if row["object"] == "secret KEY of alice"] == [
        ("set", None, {"bytes": 13}),
        ("set", {"bytes": 13}, {"bytes": 26}),
        ("remove", {"bytes": 26}, None),
        ("set", None, {"bytes": 13}),
    ]


def test_rotation_encrypts_with_the_new_key(platform: Platform) -> None:
    platform.alice.put("/platform/secrets/KEY", content=VALUE)
    new, lost = Fernet.generate_key().decode(), Fernet.generate_key()
    with platform.started.store.engine.begin() as connection:
        row = {"value": Fernet(lost).encrypt(b"x").decode()}
        connection.execute(text(f"INSERT INTO secrets VALUES ('alice', 'LOST', :value, 1, '{NOON}')"), row)
    database = f"sqlite:///{platform.started.folder}/gateway.db"
    keys = [new, platform.started.secrets_key or ""]
    assert [encrypt_again(database, "secrets", "value", keys) for _ in range(2)] == [(1, ["alice/LOST"])] * 2
    platform.started.secrets_key = new
    with platform.started.running() as client, as_person(client, platform.tokens["alice"]) as alice:
        listed = alice.get("/platform/secrets").json()["secrets"]
        assert {entry["name"]: entry["readable"] for entry in listed} == {"KEY": True, "LOST": False}
        token = platform.attempt("alice", "hers")[secret_folder.TOKEN]
        found = client.get(OF_ATTEMPT, headers={"Authorization": f"Bearer {token}"})
        assert decoded(found) == {"KEY": VALUE}


def worker(platform: Platform, variables: dict[str, str], script: Path) -> subprocess.CompletedProcess[str]:
    """Start a process as Ray starts an attempt's workers."""
    context = json.dumps({"env_vars": variables})
    words = [str(script), "--language=PYTHON", f"{ray_setup_worker.CONTEXT}{context}"]
    environment = {**os.environ, secret_folder.GATEWAY: str(platform.administrator.base_url).rstrip("/")}
    command = [sys.executable, ray_setup_worker.__file__, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BOUND_S, check=False)


def test_worker_process_finds_files(platform: Platform, tmp_path: Path) -> None:
    platform.alice.put("/platform/secrets/KEY", content=VALUE)
    (tmp_path / "reads.py").write_text(READS)
    variables = platform.attempt("alice", "hers")
    folder = Path(variables[secret_folder.FOLDER])
    for _ in range(2):
        done = worker(platform, variables, tmp_path / "reads.py")
        assert (done.stdout.splitlines(), done.stderr) == (["0o700", "0o600", repr(VALUE)], "")
    assert folder.exists(), "the second process made it again"
    secret_folder.remove_unused(str(folder.parent))
    assert not folder.exists()
    folder.parent.rmdir()


def test_worker_process_of_ended_attempt_finds_nothing(platform: Platform, tmp_path: Path) -> None:
    platform.alice.put("/platform/secrets/KEY", content=VALUE)
    (tmp_path / "reads.py").write_text("import os; print(os.path.exists(os.environ['MLPLATFORM_SECRETS']))")
    variables = platform.attempt("alice", "hers")
    platform.started.end(Outcome.SUCCEEDED, "hers")
    done = worker(platform, variables, tmp_path / "reads.py")
    assert done.stdout == "False\n"
    assert "Attempt 1 of job hers has ended" in done.stderr


def test_folder_that_a_job_sets_itself_is_left_alone(platform: Platform, tmp_path: Path) -> None:
    platform.alice.put("/platform/secrets/KEY", content=VALUE)
    (tmp_path / "lists.py").write_text("import os; print(os.listdir(os.environ['MLPLATFORM_SECRETS']))")
    own = tmp_path / "own"
    own.mkdir()
    variables = {**platform.attempt("alice", "hers"), secret_folder.FOLDER: str(own)}
    assert worker(platform, variables, tmp_path / "lists.py").stdout == "[]\n"


def test_command_line_stores_lists_and_removes(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "value").write_bytes(VALUE)

    def secrets(*words: str, given: str = "") -> str:
        done = typed(platform.administrator, "secrets", *words, token=platform.tokens["alice"], given=given)
        return done.stdout + done.stderr

    assert secrets("list") == "You have no secrets; `mlplatform secrets put NAME` stores one.\n"
    stored = "Stored KEY; your jobs that start from now on find it in $MLPLATFORM_SECRETS/KEY.\n"
    assert secrets("put", "KEY", "-", given="from a pipe\n") == stored
    assert secrets("put", "SSH", "--file", str(tmp_path / "value")).startswith("Stored SSH")
    token = platform.attempt("alice", "hers")[secret_folder.TOKEN]
    assert decoded(platform.asks(token)) == {"KEY": b"from a pipe", "SSH": VALUE}
    table = secrets("list")
    assert all(word in table for word in ("KEY", "SSH", "11 bytes", "stored"))
    assert "pipe" not in table
    assert secrets("put", "KEY", "on-the-command-line").startswith("Choose one of `-` and --file")
    assert secrets("put", "KEY", "--file", f"{tmp_path}/none").endswith("name a file with the secret.\n")
    assert secrets("remove", "KEY") == "Removed KEY.\n"
    assert secrets("remove", "KEY").startswith("Secret 'KEY' does not exist")
