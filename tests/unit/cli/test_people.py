"""`mlplatform people`, `teams`, `login`, `logout` and `tokens` against a whole gateway."""

import json
import re
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import certifi
import httpx
import pytest
from botocore.session import Session
from command_line import mlplatform
from cryptography.fernet import Fernet
from ray_head import TOKEN, served
from stand_in_minio import ACCOUNT, SECRET, StandInMinio
from stand_in_mlflow import StandInMlflow
from started_gateway import MLFLOW_PASSWORD, S3_PORT, StartedGateway

from mlplatform.secrets.credentials import read_mlflow_account

SHARED = "ray_token"


@dataclass
class Machine:
    """A machine with a home folder, whose command line uses a gateway."""

    address: str
    home: Path
    token_file: Path | None = None
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, *words: str, answer: str = "") -> subprocess.CompletedProcess[str]:
        token = {"RAY_AUTH_TOKEN_PATH": str(self.token_file)} if self.token_file else {}
        place = {"RAY_ADDRESS": self.address, "HOME": str(self.home), "COLUMNS": "200"}
        return mlplatform(*words, answer=answer, **place, **token, **self.variables)

    def prints(self, *words: str) -> str:
        """Standard output of a command that succeeds."""
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refuses(self, *words: str) -> str:
        """The one sentence of a command that fails."""
        done = self.run(*words)
        assert done.returncode in (1, 2, 6, 7)
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        return done.stderr.strip()

    @property
    def token(self) -> Path:
        return self.home / ".ray" / "auth_token"

    @property
    def mlflow_file(self) -> Path:
        return self.home / ".mlflow" / "credentials"


@pytest.fixture
def minio(request: pytest.FixtureRequest) -> StandInMinio | None:
    """MinIO for tests `with_minio`; None for a platform that stores objects elsewhere."""
    return StandInMinio() if getattr(request, "param", False) else None


@pytest.fixture
def mlflow() -> StandInMlflow:
    return StandInMlflow("gateway", MLFLOW_PASSWORD)


@pytest.fixture
def gateway(
    tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch, minio: StandInMinio | None, mlflow: StandInMlflow
) -> Iterator[httpx.Client]:
    monkeypatch.setenv("MLPLATFORM_STORAGE", str(tmp_path / "storage"))
    started = StartedGateway(tmp_path, f"http://127.0.0.1:{closed_port}", secrets_key=Fernet.generate_key().decode())
    with ExitStack() as stack:
        started.mlflow = stack.enter_context(served(mlflow.app))
        if minio is not None:
            started.s3 = (stack.enter_context(served(minio.app)), ACCOUNT, SECRET)
        yield stack.enter_context(started.running())


with_minio = pytest.mark.parametrize("minio", [True], indirect=True)


@pytest.fixture
def host(gateway: httpx.Client, tmp_path: Path) -> Machine:
    """The platform's host, with the shared token."""
    return Machine(str(gateway.base_url), tmp_path / "root", tmp_path / SHARED)


@pytest.fixture
def laptop(gateway: httpx.Client, tmp_path: Path) -> Machine:
    """A laptop without any token."""
    return Machine(str(gateway.base_url), tmp_path / "home")


def code_of(host: Machine, *words: str) -> str:
    """Run `people add`; return the code that it prints."""
    found = re.search(r"mlplatform login (\S+)", host.prints("people", "add", *words))
    assert found
    return found[1]


def test_changes_of_people_are_printed_as_json(host: Machine) -> None:
    added = json.loads(host.prints("teams", "add", "vision", "--gpus", "2", "--json"))
    assert (added["name"], added["share_gpus"]) == ("vision", 2)
    assert json.loads(host.prints("teams", "set", "vision", "--weight", "3", "--json"))["weight"] == 3
    invited = json.loads(host.prints("people", "add", "alice", "--team", "vision", "--json"))
    assert (invited["name"], invited["added"], bool(invited["code"])) == ("alice", True, True)
    assert json.loads(host.prints("people", "remove", "alice", "--json"))["removed"] == "alice"


def test_log_in_writes_a_private_file_for_all_commands(host: Machine, laptop: Machine, mlflow: StandInMlflow) -> None:
    host.prints("teams", "add", "vision")
    other = laptop.home / ".aws" / "credentials"
    other.parent.mkdir(parents=True)
    other.write_text("mine")
    printed = laptop.prints("login", code_of(host, "alice", "--team", "vision"))
    assert "Logged in as alice until" in printed
    assert "S3" not in printed
    assert f"RAY_AUTH_TOKEN_PATH={laptop.token}" in printed
    assert stat.S_IMODE(laptop.token.stat().st_mode) == 0o600
    assert laptop.token.read_text().startswith("mlp_")
    assert laptop.token.read_text().strip() not in printed
    assert laptop.prints("jobs").strip()
    written = sorted(path.name for path in laptop.home.iterdir())
    assert (other.read_text(), written) == ("mine", [".aws", ".mlflow", ".ray"])
    assert read_mlflow_account(laptop.mlflow_file) == ("alice", mlflow.passwords["alice"])
    assert stat.S_IMODE(laptop.mlflow_file.stat().st_mode) == 0o600
    assert laptop.refuses("audit").startswith("Only administrators may use GET")


def test_code_is_prompted_for(host: Machine, laptop: Machine) -> None:
    code = code_of(host, "ada", "--admin")
    done = laptop.run("login", answer=f"{code}\n")
    assert "Logged in as ada" in done.stdout
    assert code not in done.stdout


def test_log_in_replaces_a_token_of_the_same_person(host: Machine, laptop: Machine) -> None:
    laptop.prints("login", code_of(host, "ada", "--admin"))
    former = laptop.token.read_text()
    laptop.prints("login", code_of(host, "ada"))
    assert laptop.token.read_text() != former
    assert [line.split()[2] for line in laptop.prints("tokens", "list").splitlines()[1:]] == ["revoked", "valid"]


def test_log_in_keeps_a_token_of_somebody_else_unless_forced(host: Machine, laptop: Machine) -> None:
    laptop.prints("login", code_of(host, "ada", "--admin"))
    former = laptop.token.read_text()
    code = code_of(host, "eve", "--admin")
    assert "The code is of eve" in laptop.refuses("login", code)
    assert laptop.token.read_text() == former
    assert "Logged in as eve" in laptop.prints("login", code, "--force")


def test_log_in_keeps_the_shared_token(host: Machine, tmp_path: Path) -> None:
    code = code_of(host, "ada", "--admin")
    refusal = host.refuses("login", code)
    assert f"{tmp_path / SHARED} has a token that is not a person's" in refusal
    assert (tmp_path / SHARED).read_text() == TOKEN
    assert "has no token of a person" in host.refuses("logout")


def test_wrong_code_writes_nothing(laptop: Machine) -> None:
    assert laptop.refuses("login", "wrong").startswith("This log-in code is wrong")
    assert not laptop.token.exists()
    assert list(laptop.token.parent.iterdir()) == []


def test_log_out_revokes_the_token(host: Machine, laptop: Machine) -> None:
    laptop.prints("login", code_of(host, "ada", "--admin"))
    copy = laptop.home / "copy"
    copy.write_text(laptop.token.read_text())
    assert f"Logged out; {laptop.token} is removed." in laptop.prints("logout")
    assert not laptop.token.exists()
    assert not laptop.mlflow_file.exists()
    laptop.token_file = copy
    assert "This token of ada was revoked" in laptop.refuses("jobs")
    assert laptop.run("logout").returncode == 0


def test_account_of_mlflow_that_is_there_is_left_alone(host: Machine, laptop: Machine) -> None:
    laptop.mlflow_file.parent.mkdir(parents=True)
    mine = "[mlflow]\nmlflow_tracking_username = me\nmlflow_tracking_password = mine\n"
    laptop.mlflow_file.write_text(mine)
    printed = laptop.prints("login", code_of(host, "ada", "--admin"))
    assert "~/.mlflow/credentials has another, or cannot be written" in printed
    laptop.prints("logout")
    assert laptop.mlflow_file.read_text() == mine


def test_revoked_token_is_refused_with_the_reason(host: Machine, laptop: Machine) -> None:
    laptop.prints("login", code_of(host, "ada", "--admin"))
    token_id = laptop.token.read_text().split("_")[1]
    assert host.prints("tokens", "revoke", token_id) == f"Revoked token {token_id}.\n"
    assert "This token of ada was revoked; ask an administrator" in laptop.refuses("jobs")
    assert "Token 'missing' does not exist" in host.refuses("tokens", "revoke", "missing")


def test_people_are_listed_and_removed(host: Machine) -> None:
    assert "everybody uses the shared token" in host.prints("people", "list")
    host.prints("teams", "add", "vision")
    code_of(host, "lena", "--team", "vision", "--lead")
    code_of(host, "ada", "--admin")
    rows = [line.split() for line in host.prints("people", "list").splitlines()[1:]]
    assert [row[:3] for row in rows] == [["ada", "administrator", rows[0][2]], ["lena", "vision", "(lead)"]]
    assert host.prints("people", "remove", "lena", "--team", "vision") == "Removed lena from team vision.\n"
    assert "Removed lena. The jobs stay" in host.prints("people", "remove", "lena")
    assert "Person 'lena' does not exist" in host.refuses("people", "remove", "lena")
    assert "Team 'audio' does not exist" in host.refuses("people", "add", "otto", "--team", "audio")


def test_lists_as_json_have_what_the_gateway_answers(host: Machine, laptop: Machine, gateway: httpx.Client) -> None:
    host.prints("teams", "add", "vision", "--gpus", "2", "--cap", "running=3")
    laptop.prints("login", code_of(host, "ada", "--team", "vision", "--lead"))
    laptop.run("secrets", "put", "KEY", "-", answer="value")
    own = {"Authorization": f"Bearer {laptop.token.read_text().strip()}"}
    for noun in ("people", "teams", "tokens", "secrets"):
        (printed,) = map(json.loads, laptop.prints(noun, "list", "--json").splitlines())
        (answer,) = gateway.get(f"/platform/{noun}", headers=own).json()[noun]
        # The token may have been used meanwhile.
        assert printed | {"used": None} == answer | {"used": None}


def test_team_with_people_is_removed_with_force_only(host: Machine) -> None:
    host.prints("teams", "add", "vision")
    code_of(host, "lena", "--team", "vision")
    assert "would submit nothing: lena; `mlplatform teams remove vision --force`" in host.refuses(
        *("teams", "remove", "vision")
    )
    assert host.prints("teams", "remove", "vision", "--force").startswith("Removed team vision. Its jobs stay")
    assert "Team 'vision' does not exist" in host.refuses("teams", "remove", "vision")


def test_new_person_prints_what_to_do_next(host: Machine) -> None:
    printed = host.prints("people", "add", "alice", "--admin")
    assert "`mlplatform dev start` gives them a JupyterLab" in printed


def test_new_team_prints_what_is_not_guaranteed(host: Machine) -> None:
    printed = host.prints("teams", "add", "vision", "--gpus", "2", "--cap", "gpus=4", "--person-cap", "running=2")
    guarantees = printed.partition("\n\n")[2].splitlines()
    for sentence in (
        "It shows logs, commands and names of variables of a job to its team only",
        "values of variables to its owner only. Only the owner, leads of the team and administrators can stop",
        "changes no job of anybody else through the gateway.",
        "Protection from hostile code, neither within a team nor between teams. Each job gets Ray's own token",
        "can read variables and files of other jobs, and can control the whole cluster.",
        "the code of a job may read the tokens of running jobs",
        "That a job uses only what it has declared",
        "A team's share at any moment",
        "two minutes unless the administrator has set another time.",
        "ends when another job needs what it holds, also within its team's share.",
        "all jobs have one account at MLflow and one at the object store, where all people have another.",
        "Teams that must be protected from each other need a stack each.",
    ):
        assert sentence in " ".join(line.strip() for line in guarantees), sentence
    split = guarantees.index("It does not guarantee:")
    assert [sum(line.startswith("- ") for line in part) for part in (guarantees[:split], guarantees[split:])] == [2, 5]
    host.prints("teams", "set", "vision", "--weight", "2.5", "--default-limit", "4h")
    row = host.prints("teams", "list").splitlines()[1]
    caps = ["team:", "gpus", "4;", "person:", "running", "2"]
    assert row.split() == ["vision", "2", "0", "2.5", "4", "h", "30", "min", *caps]
    for words, shown in ((("2h",), ["2", "h"]), (("never",), ["never"])):
        host.prints("teams", "set", "vision", "--idle-after", *words)
        row = host.prints("teams", "list").splitlines()[1]
        assert row.split() == ["vision", "2", "0", "2.5", "4", "h", *shown, *caps]


def test_budgets_are_set_listed_and_removed(host: Machine, laptop: Machine) -> None:
    host.prints("teams", "add", "vision", "--gpu-hours", "500/month")
    assert host.prints("teams", "list").splitlines()[1].split()[-3:] == ["0.0", "of", "500/month"]
    assert "Team vision has used 0.0 of its 500 GPU hours of this month.\n" in host.prints("usage")
    host.prints("teams", "set", "vision", "--gpu-hours", "none")
    assert "500" not in host.prints("teams", "list") + host.prints("usage")
    assert "budget='500' is not valid: use GPU hours" in host.refuses("teams", "set", "vision", "--gpu-hours", "500")
    laptop.prints("login", code_of(host, "ada", "--admin", "--gpu-hours", "2.5"))
    assert laptop.prints("tokens", "list").splitlines()[1].split()[-1] == "2.5"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--default-limit", "soon"), "Invalid --default-limit 'soon'"),
        (("--cap", "disks=1"), "Invalid --cap 'disks=1'"),
        (("--person-cap", "running=many"), "'many' is not a number"),
        (("--default-limit", "1s"), "default_limit_s=1"),
    ],
)
def test_invalid_value_of_team_is_named(host: Machine, words: tuple[str, ...], named: str) -> None:
    assert named in host.refuses("teams", "add", "vision", *words)


@with_minio
def test_s3_clients_use_the_log_in_until_log_out(
    host: Machine, laptop: Machine, minio: StandInMinio, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = laptop.prints("login", code_of(host, "ada", "--admin"))
    assert "S3 clients get a key from the gateway with it, as ~/.aws/config says.\n" in printed
    assert f"They connect to http://127.0.0.1:{S3_PORT}, as the gateway says" in printed
    monkeypatch.setenv("HOME", str(laptop.home))
    began = datetime.now(UTC)
    # As S3 clients find it: nothing of the variables with which the person has logged in.
    session = Session()
    credentials = session.get_credentials()
    (key,) = minio.keys.values()
    frozen = credentials.get_frozen_credentials()
    assert (frozen.access_key, frozen.secret_key) == (key["accessKey"], key["secretKey"])
    assert timedelta(minutes=59) < credentials._expiry_time - began < timedelta(minutes=61)
    assert session.create_client("s3").meta.endpoint_url == f"http://127.0.0.1:{S3_PORT}"
    laptop.prints("login", code_of(host, "ada"))
    assert Session().get_credentials().access_key == key["accessKey"]
    laptop.prints("logout")
    assert list((laptop.home / ".aws").iterdir()) == []
    assert "rejects the token (401" in laptop.refuses("s3-credentials")


@with_minio
def test_removed_person_gets_no_key_and_others_get_another(
    host: Machine, laptop: Machine, minio: StandInMinio, tmp_path: Path
) -> None:
    other = Machine(laptop.address, tmp_path / "other home")
    for machine, name in ((laptop, "ada"), (other, "eve")):
        machine.prints("login", code_of(host, name, "--admin"))
    former = json.loads(laptop.prints("s3-credentials"))["AccessKeyId"]
    printed = host.prints("people", "remove", "eve")
    assert "within a minute the former one is refused" in printed
    assert "end with `make rotate`" in printed
    assert "This token of eve was revoked" in other.refuses("s3-credentials")
    assert json.loads(laptop.prints("s3-credentials"))["AccessKeyId"] not in {former}
    assert former not in minio.keys


@with_minio
def test_log_in_beside_another_default_names_the_profile(host: Machine, laptop: Machine, minio: StandInMinio) -> None:
    mine = "[default]\naws_access_key_id = AKIAIOSFODNN7EXAMPLE\naws_secret_access_key = mine\n"
    credentials = laptop.home / ".aws" / "credentials"
    credentials.parent.mkdir(parents=True)
    credentials.write_text(mine)
    assert "after: export AWS_PROFILE=mlplatform\n" in laptop.prints("login", code_of(host, "ada", "--admin"))
    laptop.prints("logout")
    assert credentials.read_text() == mine


@with_minio
def test_log_in_without_object_store_succeeds(host: Machine, laptop: Machine, minio: StandInMinio) -> None:
    minio.status = 503
    laptop.prints("login", code_of(host, "ada", "--admin"))
    assert "is not ready (503)" in laptop.refuses("s3-credentials")
    minio.status = None
    assert json.loads(laptop.prints("s3-credentials"))["AccessKeyId"] in minio.keys


@with_minio
def test_address_and_certificates_of_the_machine_take_precedence(
    host: Machine, laptop: Machine, minio: StandInMinio, tmp_path: Path
) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text(Path(certifi.where()).read_text())
    laptop.variables = {"AWS_ENDPOINT_URL": "https://minio:9000", "SSL_CERT_FILE": str(bundle)}
    printed = laptop.prints("login", code_of(host, "ada", "--admin"))
    assert "They connect to https://minio:9000, as AWS_ENDPOINT_URL says" in printed
    config = (laptop.home / ".aws" / "config").read_text().splitlines()
    place = ["[default]", "endpoint_url = https://minio:9000", "region = us-east-1", f"ca_bundle = {bundle}"]
    assert config[:-1] == place
    assert f"SSL_CERT_FILE={bundle}" in config[-1]
    laptop.variables = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "other")}
    printed = laptop.prints("login", code_of(host, "ada"))
    assert f"AWS_SHARED_CREDENTIALS_FILE={tmp_path / 'other'} names a file" in printed
    assert not (tmp_path / "other").exists()
