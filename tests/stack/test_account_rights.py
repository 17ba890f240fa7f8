"""Rights of each account of a service: every action is tried with every account, and compared with a table.

One table per service. A row names an action; the accounts that may perform it are beside it, and all others must be
refused with 401 or 403.
"""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import httpx
import pytest
from figures import count
from host import Stack, wait_for
from persons import administer, log_in, submit

from mlplatform.client.jobs import Jobs
from mlplatform.credentials import read_mlflow_account
from mlplatform.files import checksums
from mlplatform.stack.env import client_settings

pytestmark = pytest.mark.nightly

ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
PARTS = "/api/2.0/mlflow-artifacts/mpu"
API = "/api/2.0/mlflow"
REFUSED = (401, 403)

PEOPLE = ("alice", "team-mate", "lead", "other team", "administrator")
"""People with tokens: Alice, others of her team, and others."""

TEAM = ("admin", "gateway", "job", "person", "prometheus", *PEOPLE)
"""MLflow knows no teams: it lets every account log and promote; what is registered is guarded, whoever asks."""

ALL = (*TEAM, "job of alice")
"""With the token of an attempt, which changes only what belongs to the owner of the job."""

ACCOUNTS = (*ALL, "revoked", "ended job of alice", "nobody")

# Action: method, path, values, and the accounts that may. {name}: a registered model of the administrator, with the
# files at {path}, in {run}; {own}: that run's other files; {hers}, {experiment}: a registered model and an experiment
# of Alice; {new}: a name of its own for each try.
MLFLOW: dict[str, tuple[str, str, dict[str, object], tuple[str, ...]]] = {
    "read runs": ("POST", f"{API}/runs/search", {"experiment_ids": ["0"]}, ALL),
    "create experiment": ("POST", f"{API}/experiments/create", {"name": "{new}"}, ALL),
    "place artifacts elsewhere": (
        *("POST", f"{API}/experiments/create"),
        *({"name": "{new}", "artifact_location": "s3://jobs/x"}, ()),
    ),
    "log to a run": ("POST", f"{API}/runs/log-parameter", {"run_id": "{run}", "key": "{new}", "value": "1"}, TEAM),
    "delete others' run": ("POST", f"{API}/runs/delete", {"run_id": "{run}"}, ("admin",)),
    # Alice's own, which only she and MLflow's administrator may delete.
    "delete version of Alice's model": (
        *("DELETE", f"{API}/model-versions/delete"),
        *({"name": "{hers}", "version": "99"}, ("admin", "alice")),
    ),
    # It was not deleted, so that whoever may restore it changes nothing.
    "restore Alice's experiment": (
        *("POST", f"{API}/experiments/restore"),
        *({"experiment_id": "{experiment}"}, ("admin", "alice")),
    ),
    "register": ("POST", f"{API}/registered-models/create", {"name": "{new}"}, ALL),
    "register files elsewhere": (
        *("POST", f"{API}/model-versions/create"),
        *({"name": "{name}", "source": "s3://jobs/x", "run_id": "{run}"}, ()),
    ),
    "add version": (
        *("POST", f"{API}/model-versions/create"),
        *({"name": "{name}", "source": "mlflow-artifacts:/{path}", "run_id": "{run}"}, TEAM),
    ),
    "rename model": ("POST", f"{API}/registered-models/rename", {"name": "{new}", "new_name": "{new}-2"}, TEAM),
    "move alias": (
        *("POST", f"{API}/registered-models/alias"),
        *({"name": "{name}", "alias": "champion", "version": "1"}, ALL),
    ),
    "set digest": (
        *("POST", f"{API}/model-versions/set-tag"),
        *({"name": "{name}", "version": "1", "key": "mlplatform.digest", "value": "forged"}, ()),
    ),
    "delete signature": (
        *("DELETE", f"{API}/model-versions/delete-tag"),
        *({"name": "{name}", "version": "1", "key": "mlplatform.signature"}, ()),
    ),
    "sign": ("POST", f"{API}/mlplatform/sign", {"name": "{name}", "version": "1"}, ("admin",)),
    "overwrite registered file": ("PUT", f"{ARTIFACTS}/{{path}}/data.pkl", {}, ()),
    "add file to registered version": ("PUT", f"{ARTIFACTS}/{{path}}/more.pkl", {}, ()),
    "place a trace elsewhere": (
        *("POST", f"{API}/traces"),
        *(
            {
                "experiment_id": "0",
                "timestamp_ms": 1,
                "tags": [{"key": "mlflow.artifactLocation", "value": "s3://x/y"}],
            },
            (),
        ),
    ),
    "delete registered file": ("DELETE", f"{ARTIFACTS}/{{path}}/data.pkl", {}, ()),
    "delete others' version": (
        "DELETE",
        f"{API}/model-versions/delete",
        {"name": "{name}", "version": "99"},
        ("admin",),
    ),
    "delete others' model": ("DELETE", f"{API}/registered-models/delete", {"name": "{new}"}, ("admin",)),
    "change password": (
        "PATCH",
        f"{API}/users/update-password",
        {"username": "{account}", "password": "short"},
        ("admin",),
    ),
    "become administrator": ("PATCH", f"{API}/users/update-admin", {"username": "{new}", "is_admin": True}, ("admin",)),
    "create user": ("POST", f"{API}/users/create", {"username": "", "password": ""}, ("admin",)),
    "delete user": ("DELETE", f"{API}/users/delete", {"username": "{new}"}, ("admin",)),
    "list webhooks": ("GET", f"{API}/webhooks", {}, ("admin",)),
    "add webhook": ("POST", f"{API}/webhooks", {"name": "{new}"}, ("admin",)),
    "read metrics": ("GET", "/metrics", {}, ("admin", "prometheus")),
    "read audit": ("GET", f"{API}/mlplatform/audit", {}, ("admin", "person")),
    "list deleted runs": ("GET", f"{API}/mlplatform/expired", {"days": 999}, ("admin", "gateway")),
    "remove deleted run": ("POST", f"{API}/mlplatform/expired", {"id": "{run}", "days": 999}, ("admin", "gateway")),
}
"""MLflow's table."""

IN_PARTS: dict[str, tuple[str, dict[str, object]]] = {
    "upload parts": (f"{PARTS}/create/{{own}}", {"path": "data.pkl", "num_parts": 1}),
    "upload parts over registered file": (f"{PARTS}/create/{{path}}", {"path": "data.pkl", "num_parts": 1}),
    "add parts to registered version": (f"{PARTS}/create/{{path}}", {"path": "more.pkl", "num_parts": 1}),
    "complete parts of registered file": (
        *(f"{PARTS}/complete/{{path}}", {"path": "data.pkl", "upload_id": "x", "parts": []}),
    ),
}
"""Uploads past the server, to addresses that only containers reach: it grants them to no account."""

CHANGE_NOTHING = (
    *("delete others' version", "delete others' model", "change password", "become administrator"),
    *("create user", "delete user", "add webhook", "rename model"),
    *("delete version of Alice's model", "restore Alice's experiment"),
)
"""Actions whose values name nothing or are incomplete: allowed, they fail with another status than 401 and 403."""


KINDS = {"experiments": ("POST", "POST", "experiment_id"), "registered-models": ("GET", "DELETE", "name")}
"""Objects that the actions leave: the methods to search and to delete them, and the name of their identity."""


@dataclass
class Mlflow:
    """MLflow with one registered model."""

    client: httpx.Client
    logins: dict[str, tuple[str, str]]
    names: dict[str, str] = field(default_factory=dict)

    def send(self, account: str, method: str, path: str, values: dict[str, object]) -> httpx.Response:
        names = {**self.names, "new": f"rights-{uuid.uuid4().hex[:12]}", "account": account}
        filled = {key: value.format(**names) if isinstance(value, str) else value for key, value in values.items()}
        sent = {"content": b"POISON"} if method == "PUT" else {"params" if method == "GET" else "json": filled}
        return self.client.request(method, path.format(**names), auth=self.logins[account], **sent)


@pytest.fixture(scope="module")
def tokens(running: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[str, str]]]:
    """Accounts of people, of a running and an ended job of Alice, and of somebody whose token was revoked."""
    team, other = (f"rights-{secrets.token_hex(3)}" for _ in range(2))
    for name in (team, other):
        administer(running, "teams", "add", name)
    places = {"lead": (team, "--lead"), "other team": (other,), "administrator": (other, "--admin")}
    people = {
        role: log_in(running, tmp_path_factory.mktemp("home"), role.replace(" ", "-"), *places.get(role, (team,)))
        for role in (*PEOPLE, "revoked")
    }
    alice = people["alice"]
    administer(running, "tokens", "revoke", people["revoked"].token_file.read_text().split("_")[1])
    show = "import os, time; print('token:', os.environ['MLFLOW_TRACKING_PASSWORD'], flush=True); time.sleep({})"
    with Jobs(client_settings(running.root)) as jobs:
        ended, runs = (submit(alice, "python", "-c", show.format(seconds)) for seconds in (0, 1000))
        assert jobs.wait(ended, timeout_s=120).status == "SUCCEEDED"
        shown = {job: wait_for(partial(token_in, jobs, job), "the job to show its token") for job in (ended, runs)}
        yield {
            **{role: (person.name, person.token_file.read_text().strip()) for role, person in people.items()},
            "job of alice": (alice.name, shown[runs]),
            "ended job of alice": (alice.name, shown[ended]),
        }
        jobs.stop(runs)
    for person in people.values():
        administer(running, "people", "remove", person.name)


def token_in(jobs: Jobs, job: str) -> str | None:
    found = re.search(r"token: (\S+)", jobs.logs(job))
    return found[1] if found else None


@pytest.fixture(scope="module")
def mlflow(running: Stack, tokens: dict[str, tuple[str, str]]) -> Iterator[Mlflow]:
    accounts = ("admin", "gateway", "job", "person")
    logins = {name: read_mlflow_account(running.root / "secrets" / f"mlflow_{name}") for name in accounts}
    logins |= tokens
    logins |= {"prometheus": ("prometheus", running.secret("mlflow_prometheus_password")), "nobody": ("nobody", "none")}
    address = f"http://127.0.0.1:{running.settings.mlflow_port}"
    with httpx.Client(base_url=address, timeout=60) as client:
        found = Mlflow(client, logins)
        run = found.send("admin", "POST", f"{API}/runs/create", {"experiment_id": "0"}).json()["run"]["info"]
        path = run["artifact_uri"].removeprefix("mlflow-artifacts:/").strip("/") + "/model"
        name = f"rights-{uuid.uuid4().hex[:8]}"
        found.names = {"name": name, "run": run["run_id"], "path": path, "own": f"{path}-own"}
        sums = checksums.render({"data.pkl": "0" * 64})
        for file, text in (("data.pkl", "weights"), (checksums.FILE, sums)):
            answer = client.put(f"{ARTIFACTS}/{path}/{file}", content=text.encode(), auth=logins["admin"])
            answer.raise_for_status()
        found.send("admin", "POST", f"{API}/registered-models/create", {"name": name}).raise_for_status()
        hers = {"name": f"{name}-hers"}
        found.send("alice", "POST", f"{API}/registered-models/create", hers).raise_for_status()
        experiment = found.send("alice", "POST", f"{API}/experiments/create", hers).raise_for_status().json()
        found.names |= {"hers": hers["name"], "experiment": experiment["experiment_id"]}
        version = {"name": name, "source": f"mlflow-artifacts:/{path}", "run_id": run["run_id"]}
        found.send("admin", "POST", f"{API}/model-versions/create", version).raise_for_status()
        yield found
        for kind, (search, delete, identity) in KINDS.items():
            made = {"filter": "name LIKE 'rights-%'", "max_results": 1000}
            for entry in found.send("admin", search, f"{API}/{kind}/search", made).json()[kind.replace("-", "_")]:
                found.send("admin", delete, f"{API}/{kind}/delete", {identity: entry[identity]}).raise_for_status()


@pytest.mark.parametrize("action", MLFLOW)
def test_mlflow_accounts_may_do_what_table_says(mlflow: Mlflow, action: str) -> None:
    method, path, values, allowed = MLFLOW[action]
    # The administrator comes last, because what it deletes is gone.
    answers = {name: mlflow.send(name, method, path, values) for name in reversed(ACCOUNTS)}
    count("actions tried with accounts", len(answers))
    shown = {name: (answer.status_code, answer.text[:200]) for name, answer in answers.items()}
    assert {name for name, answer in answers.items() if answer.status_code not in (*REFUSED, 429)} == set(allowed), (
        shown
    )
    if action in CHANGE_NOTHING:
        assert {answers[name].status_code for name in allowed} <= {400, 404}, shown
    else:
        assert all(answers[name].is_success for name in allowed), shown


@pytest.mark.parametrize("action", IN_PARTS)
def test_no_account_uploads_in_parts(mlflow: Mlflow, action: str) -> None:
    path, values = IN_PARTS[action]
    answers = {name: mlflow.send(name, "POST", path, values) for name in ACCOUNTS}
    count("actions tried with accounts", len(answers))
    shown = {name: (answer.status_code, answer.text[:200]) for name, answer in answers.items()}
    assert {answer.status_code for answer in answers.values()} <= {*REFUSED, 429, 501}, shown
    assert {answers[name].status_code for name in TEAM} == {501}, shown


def test_registered_files_and_digest_are_unchanged_afterwards(mlflow: Mlflow) -> None:
    files = mlflow.client.get(f"{ARTIFACTS}/{mlflow.names['path']}/data.pkl", auth=mlflow.logins["job"])
    assert files.content == b"weights"
    named = {"name": mlflow.names["name"], "version": "1"}
    assert mlflow.send("job", "GET", f"{API}/mlplatform/digest", named).json()["signed"]
