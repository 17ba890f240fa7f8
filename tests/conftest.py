"""Fixtures that the unit, embedded and stack tests share."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mlplatform.settings import environment, job
from mlplatform.storage import fence

Answer = tuple[int, str]
Become = Callable[[int], None]


@pytest.fixture(scope="session", autouse=True)
def frequent_polls() -> Iterator[None]:
    """Let clients in this process poll a job every 0.2 s instead of every second: hundreds of tests wait for jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlplatform.client.connection.POLL_SECONDS", 0.2)
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Event loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide the platform that the shell may be connected to, and the settings of the previous test."""
    for variable in environment.environment():
        if variable.startswith(("RAY_", "MLFLOW_", "MLPLATFORM_", "AWS_")):
            monkeypatch.delenv(variable)
    job.settings.cache_clear()
    yield
    job.settings.cache_clear()


@pytest.fixture
def become(clean_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Become:
    """Make this process part of job `steps`, attempt 1; call the fixture with the number of another attempt."""
    # With a SQLite database, MLflow stores artifacts in the current folder.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLPLATFORM_STORAGE", str(tmp_path / "storage"))
    monkeypatch.setenv("MLPLATFORM_JOB_ID", "steps")

    def change(attempt: int) -> None:
        monkeypatch.setenv("MLPLATFORM_ATTEMPT", str(attempt))
        job.settings.cache_clear()

    change(1)
    return change


@pytest.fixture
def replace(become: Become) -> Callable[[], None]:
    """Let attempt 2 replace the first, which notices once its last check has expired."""

    def allow_the_second() -> None:
        fence.allow("steps", 2)
        time.sleep(fence._VALID_SECONDS)

    return allow_the_second


@pytest.fixture
def closed_port() -> int:
    """A local port that refuses connections."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str, str], Answer]], str]]:
    """Start an HTTP server that answers with the given function of method and path; returns its address."""
    servers = []

    def start(answer: Callable[[str, str], Answer]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def respond(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, text = answer(self.command, self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_PUT = do_POST = do_DELETE = respond  # noqa: N815 - the names are http.server's

            def log_message(self, *arguments: object) -> None:
                """Keep the tests' output clean."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
