"""Attacks on the embedded platform by another user of the machine, a page in a browser, and a foreign name."""

from __future__ import annotations

import base64
import http.client
import json
import os
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from embedded import instance_of, listening, processes

from mlplatform.local.platform import LocalPlatform
from mlplatform.settings.job import Settings

STRANGER = 20002
"""Id of a user that owns nothing on this machine."""

ASSISTANT = "/ajax-api/3.0/mlflow/assistant"

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


def by_stranger(act: Callable[[], Any]) -> Any:
    """The result of a function that another user calls, as JSON has it; its OSError by name.

    A forked process, because the interpreter may be in a folder that others cannot enter.
    """
    receiver, sender = os.pipe()
    with warnings.catch_warnings():
        # The child only makes system calls and sends requests.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            try:
                result = act()
            except OSError as error:
                result = type(error).__name__
            os.write(sender, json.dumps(result).encode())
        finally:
            os._exit(0)
    os.close(sender)
    with os.fdopen(receiver) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def request(port: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    content = None if body is None else json.dumps(body)
    connection.request(method, path, content, {"Content-Type": "application/json", **headers})
    answer = connection.getresponse()
    return answer.status, answer.read().decode(errors="replace")


@contextmanager
def entered(folder: Path) -> Iterator[None]:
    """Let others enter the folders above one, as they can enter those above a person's usual folders."""
    above = [parent for parent in folder.parents if not parent.stat().st_mode & stat.S_IXOTH]
    modes = {parent: parent.stat().st_mode for parent in above}
    try:
        for parent in above:
            parent.chmod(modes[parent] | stat.S_IXOTH | stat.S_IROTH)
        yield
    finally:
        for parent, mode in modes.items():
            parent.chmod(mode)


@as_root
def test_other_user_neither_reads_nor_replaces_files(local: LocalPlatform) -> None:
    ray = Path(instance_of(local).ray_folder)
    python = ray / "warm" / "bin" / "python"
    content = python.read_bytes()
    with entered(local.home):
        attempts: list[Callable[[], Any]] = [
            lambda: sorted(map(str, local.home.iterdir())),
            lambda: (local.home / "mlflow.password").read_text(),
            lambda: (local.home / "ray.token").read_text(),
            lambda: (local.home / "logs" / "ray.log").read_bytes().decode(errors="replace"),
            lambda: (local.home / "gateway" / "gateway.db").read_bytes().hex(),
            lambda: sorted(map(str, ray.parent.iterdir())),
            lambda: sorted(map(str, ray.iterdir())),
            lambda: (ray / "warm").rename(ray / "warm-2"),
            lambda: (ray / "warm").mkdir(),
            lambda: (ray / "tmp" / "lightning_checkpoints-job_id=1").mkdir(),
            lambda: ray.rename(f"{ray}-2"),
            lambda: ray.parent.rename(f"{ray.parent}-2"),
        ]
        assert [by_stranger(attempt) for attempt in attempts] == ["PermissionError"] * len(attempts)
    assert python.read_bytes() == content


@as_root
def test_other_user_gets_nothing_from_mlflow(reached: Settings) -> None:
    port = httpx.URL(str(reached.tracking_uri)).port or 0
    provider = {"selected": True, "model": "m", "permissions": {"full_access": True}}
    for header in ({}, {"Authorization": "Basic " + base64.b64encode(b"local:").decode()}, {"Authorization": "Basic"}):
        for method, path, body in (
            ("PUT", f"{ASSISTANT}/config", {"providers": {"ollama": provider}}),
            ("POST", f"{ASSISTANT}/message", {"message": "hi"}),
            ("POST", "/api/2.0/mlflow/experiments/create", {"name": "theirs", "artifact_location": "/tmp/theirs"}),
            ("GET", "/api/2.0/mlflow/experiments/search?max_results=1", None),
            ("GET", "/", None),
        ):
            status, text = by_stranger(lambda: request(port, method, path, body, **header))  # noqa: B023 - called here
            expected = (403, "assistant is off") if ASSISTANT in path else (401, "mlflow.password")
            assert status == expected[0], (method, path, text)
            assert expected[1] in text
    assert by_stranger(lambda: request(port, "GET", "/health")) == [200, "OK"]


def test_own_password_opens_everything_but_assistant(reached: Settings) -> None:
    assert reached.tracking_password_file
    assert stat.S_IMODE(reached.tracking_password_file.stat().st_mode) == 0o600
    account = ("whoever", reached.tracking_password_file.read_text())
    address = str(reached.tracking_uri)
    port = httpx.URL(address).port
    with httpx.Client(base_url=address, auth=account) as mlflow:
        assert mlflow.get("/").is_success
        assert mlflow.get(f"{ASSISTANT}/config").status_code == 403
        for headers in (
            {"Origin": "http://127.0.0.1:1"},
            {"Origin": f"http://localhost:{port}"},
            {"Host": "10.evil.example"},
            {"Host": "127.0.0.1:1"},
            {"Host": f"192.168.0.1:{port}"},
        ):
            answer = mlflow.post("/api/2.0/mlflow/experiments/create", json={"name": "theirs"}, headers=headers)
            assert answer.status_code == 403, headers
        info = mlflow.get("/ajax-api/3.0/mlflow/server-info")
        assert '"gateway": true' not in info.text
        assert mlflow.get("/", headers={"Host": f"localhost:{port}"}).is_success


@as_root
def test_other_user_without_token_reads_health_and_metrics_only(local: LocalPlatform) -> None:
    paths = ("/", "/api/jobs/", "/api/v0/nodes", "/api/cluster_status", "/logs", "/metrics", "/get_runtime_envs_info")

    def everywhere() -> list[tuple[str, str]]:
        found = []
        for port in ports:
            for path in paths:
                try:
                    status, text = request(port, "GET", path)
                except (OSError, http.client.HTTPException):
                    continue  # it speaks gRPC
                # Servers of metrics answer with them whatever the path.
                if status < 300 and not text.startswith("# HELP"):
                    found.append((path, text[:100]))
        return found

    ports = sorted({port for _, port in listening(processes(local))})
    assert [(path, text) for path, text in by_stranger(everywhere) if path != "/"] == []
