"""Starting nothing: what `local` decides before and after. The real platform is in tests/embedded."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mlplatform.errors import HostError
from mlplatform.local import platform as local_platform
from mlplatform.local.platform import Instance, Local, Process

STUBBORN = (
    "import signal, subprocess, sys\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import signal; print(1, flush=True); signal.pause()'],"
    " start_new_session=True)\n"
    "signal.pause()\n"
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_nothing_runs_in_a_new_folder(home: Path) -> None:
    assert Local(home).status() is None
    assert Local(home).down() is False


def test_the_token_is_for_its_owner_alone_and_stays(home: Path) -> None:
    platform = Local(home)
    home.mkdir()
    platform._write_token()
    token = (home / "ray.token").read_text()
    platform._write_token()
    assert (home / "ray.token").read_text() == token
    assert (home / "ray.token").stat().st_mode & 0o777 == 0o600
    assert len(token) == 64


@pytest.mark.parametrize("depth", [1, 20])
def test_sockets_fit_into_their_longest_path(depth: int, tmp_path: Path) -> None:
    folder = Local(tmp_path.joinpath(*["a-long-folder"] * depth))._ray_folder()
    assert len(f"{folder}{local_platform._RAY_SOCKET}") <= local_platform._SOCKET_PATH_BYTES
    other = Local(tmp_path.joinpath(*["b-long-folder"] * depth))._ray_folder()
    assert other != folder


def test_ports_are_different() -> None:
    assert len(set(local_platform._free_ports(20))) == 20


def test_a_damaged_state_is_named(home: Path) -> None:
    home.mkdir()
    (home / "state.json").write_text("{")
    with pytest.raises(HostError, match=r"state.json is damaged"):
        Local(home).status()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="MLPLATFORM_HOME"):
        Local(tmp_path / "file" / "home").up()


def test_a_process_that_has_gone_leaves_a_platform_that_is_down(home: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    home.mkdir()
    instance = Instance("mark", "http://127.0.0.1:9", "http://127.0.0.1:9", str(home / "ray"))
    instance.processes = [Process(gone.pid, 1.0)]
    Local(home)._save(instance)
    assert Local(home).status() is None
    assert Local(home).down() is True
    assert not (home / "state.json").exists()


def test_all_of_an_instance_is_ended_and_nothing_else(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_platform, "_STOP_SECONDS", 1.0)
    marked = {**os.environ, local_platform.MARK: "this-one"}
    stubborn = subprocess.Popen([sys.executable, "-c", STUBBORN], env=marked, start_new_session=True, stdout=-1)
    stranger = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    assert stubborn.stdout
    stubborn.stdout.readline()
    try:
        leader = psutil.Process(stubborn.pid)
        (child,) = leader.children()
        instance = Instance("this-one", "", "", str(home))
        instance.processes = [Process(leader.pid, leader.create_time())]
        Local(home)._stop(instance)
        assert not local_platform.is_running(leader)
        assert not local_platform.is_running(child)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        stubborn.wait()
        stubborn.stdout.close()


def test_a_reused_process_id_is_left_alone(home: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    try:
        instance = Instance("another", "", "", str(home))
        instance.processes = [Process(stranger.pid, 1.0)]
        Local(home)._stop(instance)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
