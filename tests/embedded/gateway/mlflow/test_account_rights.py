"""Rights of MLflow's accounts: every action is tried with every account, and compared with a table.

A row names an action; the accounts that may perform it are beside it, and all others must be refused with 401 or 403.
"""

from __future__ import annotations

import uuid

import pytest
from guarded_mlflow import Server

API = "/api/2.0/mlflow"
REFUSED = (401, 403)

ADMINISTRATORS = ("admin", "gateway")
PEOPLE = (*ADMINISTRATORS, "alice", "person")
"""MLflow knows no teams: people may change and delete what others and jobs made."""

ALL = (*PEOPLE, "job")
ACCOUNTS = (*ALL, "prometheus", "nobody")

# Action: method, path, values, and the accounts that may. {name}: a registered model with the files at {path}, in
# {run}; {experiment}: an experiment of a job; {new}: a name of its own for each try.
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
    "delete version": ("DELETE", f"{API}/model-versions/delete", {"name": "{name}", "version": "99"}, PEOPLE),
    "delete model": ("DELETE", f"{API}/registered-models/delete", {"name": "{new}"}, PEOPLE),
    "change others' password": (
        *("PATCH", f"{API}/users/update-password"),
        *({"username": "{new}", "password": "short"}, ADMINISTRATORS),
    ),
    "change own password": (
        *("PATCH", f"{API}/users/update-password"),
        *({"username": "{account}", "password": "short"}, (*ADMINISTRATORS, "alice")),
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

INVALID = ("register files elsewhere",)
"""Actions that MLflow's own setting refuses to every account, as invalid."""

CHANGE_NOTHING = (
    *("delete experiment", "restore experiment", "delete version", "become administrator"),
    *("change others' password", "change own password", "create user", "delete user", "add webhook", "rename model"),
)
"""Actions whose values name nothing or are incomplete: allowed, they fail with another status than 401 and 403."""


@pytest.fixture(scope="module")
def names(server: Server) -> dict[str, str]:
    """Names of a registered model with its files and its run, and of an experiment."""
    path, registered = server.register("job", "rights")
    experiment = server.call("job", "POST", "experiments/create", {"name": "rights"})["experiment_id"]
    run = registered.json()["model_version"]["run_id"]
    return {"name": "rights", "run": run, "path": path, "experiment": experiment}


@pytest.mark.parametrize("action", MLFLOW)
def test_accounts_may_do_what_table_says(server: Server, names: dict[str, str], action: str) -> None:
    method, path, values, allowed = MLFLOW[action]
    answers = {}
    for account in ACCOUNTS:
        known = {**names, "new": f"rights-{uuid.uuid4().hex[:12]}", "account": account}
        if action == "delete model":  # people may delete those that there are
            server.call("job", "POST", "registered-models/create", {"name": known["new"]})
        filled = {key: value.format(**known) if isinstance(value, str) else value for key, value in values.items()}
        answers[account] = server.send(account, method, path, filled)
    shown = {name: (answer.status_code, answer.text[:200]) for name, answer in answers.items()}
    refused = (*REFUSED, 400) if action in INVALID else REFUSED
    assert {name for name, answer in answers.items() if answer.status_code not in refused} == set(allowed), shown
    if action in CHANGE_NOTHING:
        assert {answers[name].status_code for name in allowed} <= {400, 404}, shown
    else:
        assert all(answers[name].is_success for name in allowed), shown
