"""Packages that change while a template runs, and templates that answer late, or anything."""

import json
import os
import signal
import socket
import struct
import subprocess
import sysconfig
import threading
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import wait_for
from warm import ROOT, Warm, running_template

from mlplatform_warm import client

MARGIN_SECONDS = 3.0
"""For the start of Python, twice, on a busy machine."""

LIST_FOLDERS = "import sys; print([path.rpartition('/')[2] for path in sys.path if 'folder-' in path])"


@dataclass
class Environment:
    """A virtual environment of its own, with a template."""

    packages: Path
    warm: Warm
    variables: dict[str, str]

    def run(self, code: str) -> str:
        """Return the output of a program that starts warm if it may."""
        done = subprocess.run(
            self.warm.command(["-c", code]),
            env={**self.warm.environment(self.variables)}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Environment]:
    """An environment whose packages the test may change."""
    venv.create(tmp_path / "venv", symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    # The template imports it, because it imports everything that is called so.
    (packages / "boto3.py").write_text("VALUE = 1\n")
    # As torch does for `torch.ops`.
    (packages / "httpx.py").write_text("__file__ = '_missing.py'\n")
    for name in ("folder-1", "folder-2"):
        (tmp_path / name).mkdir()
    (packages / "extra.pth").write_text(f"{tmp_path / 'folder-1'}\n")
    variables = {"PYTHONPATH": ROOT, "PYTHONDONTWRITEBYTECODE": "1"}
    python = str(tmp_path / "venv" / "bin" / "python")
    with running_template(tmp_path / "sockets", {**os.environ, **variables}, python) as warm:
        yield Environment(packages, warm, variables)


def edit_module(own: Environment) -> None:
    (own.packages / "boto3.py").write_text("VALUE = 22\n")


def edit_path(own: Environment) -> None:
    (own.packages / "extra.pth").write_text(f"{own.packages.parents[3] / 'folder-2'}\n")


def add_path(own: Environment) -> None:
    (own.packages / "more.pth").write_text(f"{own.packages.parents[3] / 'folder-2'}\n")


def install(own: Environment) -> None:
    (own.packages / "installed").mkdir()
    (own.packages / "installed" / "__init__.py").write_text("VALUE = 3\n")


def uninstall(own: Environment) -> None:
    (own.packages / "boto3.py").unlink()


@pytest.mark.parametrize(
    ("change", "code", "before", "after"),
    [
        (edit_module, "import boto3; print(boto3.VALUE)", "1", "22"),
        (edit_path, LIST_FOLDERS, "['folder-1']", "['folder-2']"),
        (add_path, LIST_FOLDERS, "['folder-1']", "['folder-1', 'folder-2']"),
        (install, "import importlib.util as i; print(bool(i.find_spec('installed')))", "False", "True"),
        (uninstall, "import importlib.util as i; print(bool(i.find_spec('boto3')))", "True", "False"),
    ],
    ids=["edited module", "edited pth", "added pth", "installed package", "removed package"],
)
def test_changed_package_is_never_served_stale(
    change: Callable[[Environment], None], code: str, before: str, after: str, own: Environment
) -> None:
    assert own.run(code) == before
    change(own)
    assert own.run(code) == after
    first, second = own.warm.reasons()
    assert first is None
    assert second is not None
    assert "has changed since it was imported" in second

    def starts_warm() -> bool:
        assert own.run(code) == after
        return own.warm.reasons()[-1] is None

    wait_for(starts_warm, "the template to be renewed")


def test_module_that_changes_while_template_loads_is_not_stale(own: Environment, tmp_path: Path) -> None:
    # Written between its import and the end of the template's imports.
    (own.packages / "boto3.py").write_text(
        "VALUE = 1\nfrom pathlib import Path\n"
        "text = Path(__file__).read_text()\n"
        "if '= 1' in text: Path(__file__).write_text(text.replace('= 1', '= 22', 1))\n"
    )
    variables = {**os.environ, **own.variables}
    with running_template(tmp_path / "second" / "sockets", variables, own.warm.python) as warm:
        second = Environment(own.packages, warm, own.variables)
        assert second.run("import boto3; print(boto3.VALUE)") == "22"
        assert second.warm.reasons()[0] is not None


@contextmanager
def stopped(*templates: int) -> Iterator[None]:
    """Stop templates; what runs meanwhile is delayed by about two seconds."""
    for pid in templates:
        os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        yield
        assert time.monotonic() - began < client.SILENCE_SECONDS + MARGIN_SECONDS
    finally:
        for pid in templates:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("names", [["driver"], ["base"], ["base", "driver"], ["keeper"]], ids=" ".join)
def test_stopped_template_delays_program_by_two_seconds(names: list[str], own: Environment) -> None:
    found = own.warm.pids()
    assert own.run("print('first')") == "first"
    with stopped(*(found[name] for name in names)):
        assert own.run("print('second')") == "second"
    silent = f"the template is silent for {client.SILENCE_SECONDS:g} s"
    assert own.warm.reasons() == [None, silent if "driver" in names else None]


def test_stopped_base_template_delays_program_by_two_seconds(own: Environment) -> None:
    found = own.warm.pids()
    os.kill(found["driver"], signal.SIGKILL)
    wait_for(lambda: not connects(own.warm.folder / "driver.sock"), "the drivers' template to end")
    with stopped(found["base"]):
        assert own.run("print('cold')") == "cold"
    assert own.warm.reasons() == [f"the template is silent for {client.SILENCE_SECONDS:g} s"]


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def message(content: object) -> bytes:
    body = json.dumps(content).encode()
    return client.FORKED + struct.pack("!I", len(body)) + body


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage",
        client.FORKED,
        client.WAITING * 3,
        client.FORKED + b"garbage",
        client.FORKED + struct.pack("!I", 100) + b"too short",
        client.FORKED + struct.pack("!I", 4) + b"\xff\xfe\x00{",
        client.FORKED + struct.pack("!I", 200_000) + b"[" * 200_000,
        *map(message, (["a", "list"], {}, {"cold": {"reason": ["nested"]}})),
        *(message({"pid": pid}) for pid in (None, "12", 0, -1, 10**30, 2**22 + 1)),
    ],
    ids=lambda answer: repr(answer[:30]),
)
@pytest.mark.parametrize("is_open", [True, False], ids=["then silent", "then closed"])
def test_invalid_answer_delays_program_by_two_seconds(answer: bytes, is_open: bool, tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "driver.sock"))
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener, answer, is_open))
        thread.start()
        warm = Warm(folder, subprocess.Popen(["true"]), tmp_path / "starts.jsonl")
        began = time.monotonic()
        done = subprocess.run(
            warm.command(["-c", "import sys; print('cold', sys.stdin.read())"]),
            env=warm.environment(), input="text", capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        seconds = time.monotonic() - began
        thread.join()
    assert (done.returncode, done.stdout, done.stderr) == (0, "cold text\n", "")
    assert seconds < client.SILENCE_SECONDS + MARGIN_SECONDS
    (reason,) = warm.reasons()
    assert reason
    warm.process.wait()


def serve(listener: socket.socket, answer: bytes, is_open: bool) -> None:
    """Answer one client, and wait until it hangs up."""
    connection, _address = listener.accept()
    with connection:
        connection.sendall(answer)
        if not is_open:
            connection.shutdown(socket.SHUT_WR)
        # A client that has not read everything resets the connection.
        with suppress(ConnectionResetError):
            while connection.recv(65536):
                pass


def test_endless_progress_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PROGRESS_SECONDS", 0.2)
    ours, theirs = socket.socketpair()
    ended = threading.Event()

    def show_progress() -> None:
        while not ended.wait(0.01):
            theirs.send(client.WAITING)

    with ours, theirs:
        ours.settimeout(5)
        endless = threading.Thread(target=show_progress)
        endless.start()
        try:
            with pytest.raises(client.Cold, match=r"importing for 0\.2 s"):
                client._await_fork(ours)
        finally:
            ended.set()
            endless.join()
