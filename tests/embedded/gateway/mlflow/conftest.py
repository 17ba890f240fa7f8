from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from guarded_mlflow import PASSWORD, Server
from waiting import wait_for

from mlplatform.contract import MLFLOW_CHANGES
from mlplatform.local.processes import free_ports
from mlplatform.secrets.credentials import write_mlflow_account
from mlplatform.settings.job import settings

CHECKOUT = Path(__file__).parents[4]
SHIPPED = CHECKOUT / "docker/mlflow/basic_auth.ini"
COMPOSED = yaml.safe_load((CHECKOUT / "compose/tracking.yaml").read_text())["services"]["mlflow"]
SOURCES = "MLFLOW_CREATE_MODEL_VERSION_SOURCE_VALIDATION_REGEX"
ACCOUNTS = ("admin", "gateway", "job", "person", "prometheus", "alice", "bob")

SETUP = """
import sys
from mlplatform_stack import compat
compat.set_accounts([(user, sys.argv[1] + user) for user in sys.argv[2:]])
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running server with accounts, SQLite and a folder for artifacts, for all tests of this folder."""
    pytest.importorskip("flask_wtf")
    folder = tmp_path_factory.mktemp("mlflow")
    database = f"sqlite:///{folder}/mlflow.db"
    accounts = re.sub("database_uri = .*", f"database_uri = sqlite:///{folder}/auth.db", SHIPPED.read_text())
    (folder / "auth.ini").write_text(accounts)
    (folder / "key").write_text("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
    write_mlflow_account("gateway", f"{PASSWORD}gateway", folder / "gateway")
    environment = {
        **os.environ,
        "MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini"),
        "MLPLATFORM_MLFLOW_KEY_FILE": str(folder / "key"),
        "MLPLATFORM_MLFLOW_GATEWAY_FILE": str(folder / "gateway"),
        "MLFLOW_ENABLE_AI_GATEWAY": COMPOSED["environment"]["MLFLOW_ENABLE_AI_GATEWAY"],
        SOURCES: COMPOSED["environment"][SOURCES].replace("$$", "$"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    subprocess.run([sys.executable, "-m", "mlflow", "db", "upgrade", database], env=environment, check=True)
    subprocess.run([sys.executable, "-c", SETUP, PASSWORD, *ACCOUNTS], env=environment, check=True)
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "mlflow", "server", "--app-name=mlplatform", "--workers=1", f"--port={port}"]
    hosts = re.findall(r"--allowed-hosts=\S+", COMPOSED["command"])
    command += [f"--backend-store-uri={database}", f"--artifacts-destination={folder}/artifacts", *hosts]
    command.append(f"--expose-prometheus={folder}/metrics")
    with (folder / "log").open("w") as log, listening_gateway() as (gateway, changes):
        environment["RAY_ADDRESS"] = gateway
        # What it writes there would fail in a container with a read-only root.
        (folder / "home").mkdir()
        environment["HOME"] = str(folder / "home")
        process = subprocess.Popen(command, env=environment, cwd=folder / "home", stdout=log, stderr=log)
        try:
            found = Server(f"http://127.0.0.1:{port}", folder / "log", changes)
            wait_for(lambda: answers(found), "the server to answer", 300)
            yield found
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def listening_gateway() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that takes reports as the gateway does; its address, and what it has got."""
    changes: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            right = self.headers["Authorization"] == f"Bearer {PASSWORD}gateway" and self.path == MLFLOW_CHANGES
            if right:
                changes.append(json.loads(body))
            self.send_response(200 if right else 403)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", changes
        server.shutdown()


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


def answers(server: Server) -> bool:
    try:
        return httpx.get(f"{server.address}/health").is_success
    except httpx.TransportError:
        return False
