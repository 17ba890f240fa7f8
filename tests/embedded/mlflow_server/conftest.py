from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from guarded_mlflow import PASSWORD, TOKENS, Server
from waiting import wait_for

from mlplatform.local.processes import free_ports
from mlplatform.settings.job import settings

CHECKOUT = Path(__file__).parents[3]

ACCOUNTS = ("admin", "gateway", "job", "person")

SETUP = """
import sys
from mlplatform.compat import mlflow_audit, mlflow_server
mlflow_audit.create_audit_table(sys.argv[1])
mlflow_server.set_accounts([(user, sys.argv[2] + user) for user in sys.argv[3:]])
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running server with accounts, SQLite and a folder for artifacts, for all tests of this folder."""
    pytest.importorskip("flask_wtf")
    folder = tmp_path_factory.mktemp("mlflow")
    database = f"sqlite:///{folder}/mlflow.db"
    (folder / "auth.ini").write_text(
        f"[mlflow]\ndatabase_uri = sqlite:///{folder}/auth.db\ndefault_permission = EDIT\nadmin_username = admin\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\nauth_cache_ttl_seconds = 600\n"
    )
    (folder / "key").write_text("a key of the server")
    (folder / "fernet").write_text("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
    write_tokens(folder / "gateway.db")
    environment = {
        **os.environ,
        "MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini"),
        "MLPLATFORM_MLFLOW_KEY_FILE": str(folder / "key"),
        "MLPLATFORM_MLFLOW_SIGNING_KEY_FILE": str(folder / "key"),
        "MLPLATFORM_MLFLOW_TOKENS_URI": f"sqlite:///{folder}/gateway.db",
        "MLPLATFORM_MLFLOW_WEBHOOK_KEY_FILE": str(folder / "fernet"),
        "MLFLOW_ENABLE_AI_GATEWAY": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    subprocess.run([sys.executable, "-m", "mlflow", "db", "upgrade", database], env=environment, check=True)
    subprocess.run([sys.executable, "-c", SETUP, database, PASSWORD, *ACCOUNTS], env=environment, check=True)
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "mlflow", "server", "--app-name=mlplatform", "--workers=1", f"--port={port}"]
    hosts = re.findall(r"--allowed-hosts=\S+", (CHECKOUT / "compose/tracking.yaml").read_text())
    command += [f"--backend-store-uri={database}", f"--artifacts-destination={folder}/artifacts", *hosts]
    with (folder / "log").open("w") as log:
        # What it writes there would fail in a container with a read-only root.
        (folder / "home").mkdir()
        environment["HOME"] = str(folder / "home")
        process = subprocess.Popen(command, env=environment, cwd=folder / "home", stdout=log, stderr=log)
    try:
        found = Server(f"http://127.0.0.1:{port}", folder / "log")
        wait_for(lambda: answers(found), "the server to answer")
        yield found
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def as_person(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make this process a client of the server."""
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "person")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", f"{PASSWORD}person")
    settings.cache_clear()
    mlflow.set_tracking_uri(server.address)
    yield
    mlflow.set_tracking_uri(None)
    settings.cache_clear()


def write_tokens(file: Path) -> None:
    """Write what the server reads of the gateway's database: its view of valid tokens."""
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE valid_tokens (id, digest, kind, owner)")
        for name, token in TOKENS.items():
            kind, _, owner = name.partition("-")
            _, token_id, secret = token.split("_")
            row = (token_id, hashlib.sha256(secret.encode()).hexdigest(), kind, owner)
            database.execute("INSERT INTO valid_tokens VALUES (?, ?, ?, ?)", row)


def answers(server: Server) -> bool:
    try:
        return httpx.get(f"{server.address}/health").is_success
    except httpx.TransportError:
        return False
