"""Rights of each account of a service: every action is tried with every account, and compared with a table.

One table per service. A row names an action; the accounts that may perform it are beside it, and all others must be
refused with 401 or 403.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import pytest
from figures import count
from host import Stack
from persons import administer, log_in

from mlplatform.credentials import read_mlflow_account

pytestmark = pytest.mark.nightly

ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
PARTS = "/api/2.0/mlflow-artifacts/mpu"
API = "/api/2.0/mlflow"
REFUSED = (401, 403)

ADMINISTRATORS = ("admin", "gateway")
PEOPLE = (*ADMINISTRATORS, "alice", "person")
"""MLflow knows no teams: people may change and delete what others and jobs made."""

ALL = (*PEOPLE, "job")
ACCOUNTS = (*ALL, "prometheus", "revoked", "removed", "nobody")

# Action: method, path, values, and the accounts that may. {name}: a registered model with the files at {path}, in
# {run}; {own}: that run's other files; {experiment}: an experiment of a job; {new}: a name of its own for each try.
MLFLOW: dict[str, tuple[str, str, dict[str, object], tuple[str, ...]]] = {
    "read runs": ("POST", f"{API}/runs/search", {"experiment_ids": ["0"]}, ALL),
    "create experiment": ("POST", f"{API}/experiments/create", {"name": "{new}"}, ALL),
    "place artifacts elsewhere": (
        *("POST", f"{API}/experiments/create"),
        *({"name": "{new}", "artifact_location": "s3://jobs/x"}, ()),
    ),
    "log to a run": ("POST", f"{API}/runs/log-parameter", {"run_id": "{run}", "key": "{new}", "value": "1"}, ALL),
    "delete experiment": ("POST", f"{API}/experiments/delete", {"experiment_id": "999999"}, PEOPLE),
    # It was not deleted, so that whoever may restore it changes nothing.
    "restore experiment": ("POST", f"{API}/experiments/restore", {"experiment_id": "{experiment}"}, ALL),
    "register": ("POST", f"{API}/registered-models/create", {"name": "{new}"}, ALL),
    "register files elsewhere": (
        *("POST", f"{API}/model-versions/create"),
        *({"name": "{name}", "source": "s3://jobs/x", "run_id": "{run}"}, ()),
    ),
    "add version": (
        *("POST", f"{API}/model-versions/create"),
        *({"name": "{name}", "source": "mlflow-artifacts:/{path}", "run_id": "{run}"}, ALL),
    ),
    "rename model": ("POST", f"{API}/registered-models/rename", {"name": "{new}", "new_name": "{new}-2"}, ALL),
    "move alias": (
        *("POST", f"{API}/registered-models/alias"),
        *({"name": "{name}", "alias": "champion", "version": "1"}, ALL),
    ),
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
    "delete version": ("DELETE", f"{API}/model-versions/delete", {"name": "{name}", "version": "99"}, PEOPLE),
    "delete model": ("DELETE", f"{API}/registered-models/delete", {"name": "{new}"}, PEOPLE),
    "change others' password": (
        "PATCH",
        f"{API}/users/update-password",
        {"username": "{new}", "password": "short"},
        ADMINISTRATORS,
    ),
    "change own password": (
        "PATCH",
        f"{API}/users/update-password",
        {"username": "{account}", "password": "short"},
        (*ADMINISTRATORS, "alice"),
    ),
    "become administrator": (
        *("PATCH", f"{API}/users/update-admin"),
        *({"username": "{new}", "is_admin": True}, ADMINISTRATORS),
    ),
    "create user": ("POST", f"{API}/users/create", {"username": "", "password": ""}, ADMINISTRATORS),
    "delete user": ("DELETE", f"{API}/users/delete", {"username": "{new}"}, ADMINISTRATORS),
    "list webhooks": ("GET", f"{API}/webhooks", {}, ADMINISTRATORS),
    "add webhook": ("POST", f"{API}/webhooks", {"name": "{new}"}, ADMINISTRATORS),
    "read metrics": ("GET", "/metrics", {}, (*ADMINISTRATORS, "prometheus")),
    "list deleted runs": ("GET", f"{API}/mlplatform/expired", {"days": 999}, ADMINISTRATORS),
    "remove deleted run": ("POST", f"{API}/mlplatform/expired", {"id": "{run}", "days": 999}, ADMINISTRATORS),
}
"""MLflow's table."""

IN_PARTS: dict[str, tuple[str, dict[str, object]]] = {
    "upload parts": (f"{PARTS}/create/{{own}}", {"path": "data.pkl", "num_parts": 1}),
    "complete parts": (f"{PARTS}/complete/{{path}}", {"path": "data.pkl", "upload_id": "x", "parts": []}),
}
"""Uploads past the server, to addresses that only containers reach: it grants them to no account."""

INVALID = ("register files elsewhere",)
"""Actions that MLflow's own setting refuses to every account, as invalid."""

CHANGE_NOTHING = (
    *("delete experiment", "restore experiment", "delete version", "delete model", "become administrator"),
    *("change others' password", "change own password", "create user", "delete user", "add webhook", "rename model"),
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
        login = self.logins[account]
        names = {**self.names, "new": f"rights-{uuid.uuid4().hex[:12]}", "account": login[0]}
        filled = {key: value.format(**names) if isinstance(value, str) else value for key, value in values.items()}
        sent = {"content": b"POISON"} if method == "PUT" else {"params" if method == "GET" else "json": filled}
        return self.client.request(method, path.format(**names), auth=login, **sent)


@pytest.fixture(scope="module")
def logins(running: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[str, str]]]:
    """Accounts of roles, of Alice, of somebody whose token was revoked, and of one who was removed."""
    team = f"rights-{secrets.token_hex(3)}"
    administer(running, "teams", "add", team)
    roles = ("alice", "revoked", "removed")
    people = {role: log_in(running, tmp_path_factory.mktemp("home"), role, team) for role in roles}
    administer(running, "tokens", "revoke", people["revoked"].token_file.read_text().split("_")[1])
    administer(running, "people", "remove", people["removed"].name)
    accounts = ("admin", "gateway", "job", "person")
    found = {name: read_mlflow_account(running.root / "secrets" / f"mlflow_{name}") for name in accounts}
    found |= {role: read_mlflow_account(person.home / ".mlflow/credentials") for role, person in people.items()}
    found |= {"prometheus": ("prometheus", running.secret("metrics_password")), "nobody": ("nobody", "none")}
    yield found
    for role in ("alice", "revoked"):
        administer(running, "people", "remove", people[role].name)


@pytest.fixture(scope="module")
def mlflow(running: Stack, logins: dict[str, tuple[str, str]]) -> Iterator[Mlflow]:
    address = f"http://127.0.0.1:{running.settings.mlflow_port}"
    with httpx.Client(base_url=address, timeout=60) as client:
        found = Mlflow(client, logins)
        run = found.send("admin", "POST", f"{API}/runs/create", {"experiment_id": "0"}).json()["run"]["info"]
        path = run["artifact_uri"].removeprefix("mlflow-artifacts:/").strip("/") + "/model"
        name = f"rights-{uuid.uuid4().hex[:8]}"
        found.names = {"name": name, "run": run["run_id"], "path": path, "own": f"{path}-own"}
        client.put(f"{ARTIFACTS}/{path}/data.pkl", content=b"weights", auth=logins["admin"]).raise_for_status()
        found.send("job", "POST", f"{API}/registered-models/create", {"name": name}).raise_for_status()
        experiment = found.send("job", "POST", f"{API}/experiments/create", {"name": name}).raise_for_status().json()
        found.names["experiment"] = experiment["experiment_id"]
        version = {"name": name, "source": f"mlflow-artifacts:/{path}", "run_id": run["run_id"]}
        found.send("job", "POST", f"{API}/model-versions/create", version).raise_for_status()
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
    refused = (*REFUSED, 400) if action in INVALID else REFUSED
    assert {name for name, answer in answers.items() if answer.status_code not in refused} == set(allowed), shown
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
    assert {answer.status_code for answer in answers.values()} <= {*REFUSED, 501}, shown
    assert {answers[name].status_code for name in ALL} == {501}, shown
