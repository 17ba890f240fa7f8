"""People and teams at a gateway, added and logged in over HTTP as administrators and people do it."""

import os
import subprocess
import sys
from tempfile import NamedTemporaryFile
from typing import Any

import httpx
from ray_head import BOUND_S, NO_TLS, TOKEN

TEAMS = {"vision": ["alice", "bob", "lena"], "audio": ["otto"]}
LEADS, ADMINISTRATORS = {"lena"}, ["ada"]


def invite(client: httpx.Client, name: str, **fields: Any) -> str:
    """Add a person; return the log-in code."""
    answer = client.post("/platform/people", json={"name": name, **fields})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["code"])


def log_in(client: httpx.Client, code: str) -> str:
    """Exchange a code for a token."""
    answer = httpx.post(f"{client.base_url}/platform/tokens", json={"code": code}, verify=NO_TLS, timeout=BOUND_S)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["token"])


def populate(client: httpx.Client) -> dict[str, str]:
    """Add the teams and people of this module; return a token of each person."""
    for team in TEAMS:
        assert client.post("/platform/teams", json={"name": team}).status_code == 200
    codes = {
        name: invite(client, name, team=team, lead=name in LEADS) for team, names in TEAMS.items() for name in names
    }
    codes |= {name: invite(client, name, administrator=True) for name in ADMINISTRATORS}
    return {name: log_in(client, code) for name, code in codes.items()}


def as_person(client: httpx.Client, token: str) -> httpx.Client:
    """A client of the same gateway with another token; none if it is empty."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.Client(base_url=client.base_url, headers=headers, timeout=BOUND_S, verify=NO_TLS)


def submit(client: httpx.Client, job_id: str, **fields: Any) -> httpx.Response:
    """Submit a job with a variable, as Ray's client does."""
    body = {
        "entrypoint": "python train.py --secret",
        "submission_id": job_id,
        "runtime_env": {"env_vars": {"KEY": "value-of-key"}},
        "metadata": {"user": "mallory", "note": "private", "workers": "2", "worker_gpus": "1"},
        **fields,
    }
    return client.post("/api/jobs/", json=body)


def typed(client: httpx.Client, *words: str, token: str = TOKEN, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command of the command line with a token, and with a text as its input."""
    with NamedTemporaryFile("w") as file:
        file.write(token)
        file.flush()
        environment = {**os.environ, "RAY_ADDRESS": str(client.base_url), "RAY_AUTH_TOKEN_PATH": file.name}
        command = [sys.executable, "-m", "mlplatform", *words]
        return subprocess.run(command, env=environment, input=given, capture_output=True, text=True, check=False)
