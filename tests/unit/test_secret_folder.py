"""Folders of secrets on a node: who keeps one, and what happens while the gateway is unavailable."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import Serve

from mlplatform.secrets import secret_folder

HOLDS = """
import os, sys
from mlplatform.secrets import secret_folder
secret_folder.provide(os.environ)
print("started", flush=True)
sys.stdin.read()
"""

ANSWER = '{"secrets": {"KEY": "dmFsdWU="}}'


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(secret_folder.ROOT) / f"test-{uuid.uuid4()}" / "attempt"
    yield path
    secret_folder.remove_unused(str(path.parent))
    if path.parent.exists():
        path.parent.rmdir()


@contextmanager
def processes(folder: Path, gateway: str, count: int = 1) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes of an attempt, which end when this block does."""
    variables = {secret_folder.FOLDER: str(folder), secret_folder.GATEWAY: gateway, secret_folder.TOKEN: "token"}
    command, env = [sys.executable, "-c", HOLDS], {**os.environ, **variables}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    started = [subprocess.Popen(command, env=env, text=True, **pipes) for _ in range(count)]
    try:
        yield started
    finally:
        for process in started:
            if process.returncode is None:
                process.communicate()


def begun(process: subprocess.Popen[str]) -> None:
    assert process.stdout
    assert process.stdout.readline() == "started\n"


def test_folder_is_kept_until_its_last_process_ends(folder: Path, serve: Serve) -> None:
    asked = []

    def answer(_: str, path: str) -> tuple[int, str]:
        asked.append(path)
        return 200, ANSWER

    gateway = serve(answer)
    with processes(folder, gateway) as (last,):
        begun(last)
        with processes(folder, gateway) as (first,):
            begun(first)
        secret_folder.remove_unused(str(folder.parent))
        assert (folder / "KEY").read_bytes() == b"value"
    assert asked == [secret_folder.PATH], "the second process asked again"
    secret_folder.remove_unused(str(folder.parent))
    assert not folder.exists()


def test_processes_that_start_together_share_one_folder(folder: Path, serve: Serve) -> None:
    with processes(folder, serve(lambda *_: (200, ANSWER)), 4) as started:
        for process in started:
            begun(process)
        secret_folder.remove_unused(str(folder.parent))
        assert [path.name for path in folder.parent.iterdir()] == ["attempt"]
        assert (folder / "KEY").read_bytes() == b"value"


def test_process_starts_again_after_removal(folder: Path, serve: Serve) -> None:
    gateway = serve(lambda *_: (200, ANSWER))
    for _ in range(2):
        with processes(folder, gateway) as (process,):
            begun(process)
            assert (folder / "KEY").exists()
        secret_folder.remove_unused(str(folder.parent))


def test_process_waits_for_unavailable_gateway(folder: Path, serve: Serve) -> None:
    answers = iter([(503, "The database is unavailable."), (200, ANSWER)])
    with processes(folder, serve(lambda *_: next(answers))) as (process,):
        begun(process)
        assert (folder / "KEY").exists()


def test_process_ends_if_gateway_stays_unavailable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_folder, "_PATIENCE_SECONDS", 0.0)
    variables = {secret_folder.FOLDER: str(folder), secret_folder.GATEWAY: "http://127.0.0.1:9"}
    with pytest.raises(SystemExit, match="The secrets for this process are unavailable"):
        secret_folder.provide(variables)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_refused_process_starts_without_secrets(folder: Path, serve: Serve, status: int) -> None:
    with processes(folder, serve(lambda *_: (status, "Attempt 1 has ended."))) as (process,):
        begun(process)
        assert not folder.exists()
        assert process.communicate()[1].endswith("Attempt 1 has ended.\n")
