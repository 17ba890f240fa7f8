"""The embedded platform's decisions before and after a start; nothing is started. tests/embedded starts it."""

import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from mlplatform.errors import HostError
from mlplatform.local import processes, programs
from mlplatform.local.instance import RAY_SOCKET, SOCKET_PATH_BYTES, Home, Instance
from mlplatform.local.platform import LocalPlatform
from mlplatform.local.processes import MARK, Process, is_running

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


def test_nothing_runs_in_new_folder(home: Path) -> None:
    assert LocalPlatform(home).status() is None
    assert LocalPlatform(home).down() is False


def test_database_of_unknown_version_is_refused_and_kept(home: Path, closed_port: int) -> None:
    database = home / "gateway" / "gateway.db"
    database.parent.mkdir(parents=True)
    with sqlite3.connect(database) as connection:
        connection.executescript(
            "CREATE TABLE alembic_version (version_num VARCHAR(32)); INSERT INTO alembic_version VALUES ('0004');"
        )
    content = database.read_bytes()
    platform, address = LocalPlatform(home), f"http://127.0.0.1:{closed_port}"
    instance = Instance("1", address, address, str(home / "ray"))
    (home / "logs").mkdir()
    instance = instance.with_process(programs.start("gateway", Home(home), instance))
    with pytest.raises(HostError, match=r"gateway did not start; .* has revision 0004, .* MLPLATFORM_HOME\.$") as error:
        platform._wait_until_up(instance)
    assert len(str(error.value).splitlines()) == 1
    assert database.read_bytes() == content


def test_token_file_is_private_and_persistent(home: Path) -> None:
    platform = LocalPlatform(home)
    home.mkdir()
    platform._write_secrets()
    token = (home / "ray.token").read_text()
    platform._write_secrets()
    assert (home / "ray.token").read_text() == token
    assert (home / "ray.token").stat().st_mode & 0o777 == 0o600
    assert len(token) == 64


@pytest.mark.parametrize("depth", [1, 20])
def test_socket_paths_fit_length_limit(depth: int, tmp_path: Path) -> None:
    folder = Home(tmp_path.joinpath(*["a-long-folder"] * depth)).ray_folder()
    assert len(f"{folder}{RAY_SOCKET}") <= SOCKET_PATH_BYTES
    other = Home(tmp_path.joinpath(*["b-long-folder"] * depth)).ray_folder()
    assert other != folder


@pytest.mark.parametrize("depth", [1, 20])
def test_only_owner_reaches_rays_folder(depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path.joinpath(*["temporary"] * depth)
    temporary.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    homes = [Home(tmp_path.joinpath(*["a-long-folder"] * 20)) for _ in range(2)]
    folders = [home.ray_folder() for home in homes]
    assert folders[0] != folders[1], "a former or foreign folder would be used again"
    for folder in folders:
        assert not folder.exists()
        assert (folder.parent.stat().st_mode & 0o777, folder.parent.stat().st_uid) == (0o700, os.getuid())
        folder.parent.rmdir()


def test_rays_folder_is_removed_with_its_parent(home: Path) -> None:
    folder = Home(home / ("long" * 20)).ray_folder()
    (folder / "session").mkdir(parents=True)
    LocalPlatform(home)._stop(Instance("1", "", "", str(folder)))
    assert not folder.parent.exists()


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o500])
def test_home_that_exists_becomes_private(mode: int, home: Path) -> None:
    home.mkdir()
    home.chmod(mode)
    assert LocalPlatform(home).down() is False
    assert home.stat().st_mode & 0o777 == 0o700
    link = home.with_name("link")
    link.symlink_to(home)
    assert LocalPlatform(link).down() is False


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to others")
@pytest.mark.parametrize("kind", ["folder", "link", "link to own folder"])
def test_home_of_another_user_is_refused(kind: str, home: Path, tmp_path: Path) -> None:
    target = tmp_path / "target" if "link" in kind else home
    target.mkdir()
    if "link" in kind:
        home.symlink_to(target)
        os.chown(home, 20002, 20002, follow_symlinks=False)
    if "own" not in kind:
        os.chown(target, 20002, 20002)
    with pytest.raises(HostError, match="belongs to another user"):
        LocalPlatform(home).up()
    assert not list(target.iterdir())


def test_allocated_ports_differ() -> None:
    assert len(set(processes.free_ports(20))) == 20


@pytest.mark.parametrize(
    ("text", "allowed"), [("32768\t60999\n", range(20_000, 32_768)), ("1024 65535", range(1024, 65_536))]
)
def test_allocated_ports_are_not_those_of_connections(
    text: str, allowed: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text(text)
    monkeypatch.setattr(processes, "_EPHEMERAL", tmp_path / "range")
    assert set(processes.free_ports(200)) <= set(allowed)


def test_used_port_is_not_allocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "range").write_text("21002 60999")
    monkeypatch.setattr(processes, "_EPHEMERAL", tmp_path / "range")
    (used,) = processes.free_ports(1)
    with socket.socket() as listener:
        listener.bind((processes.LOOPBACK, used))
        listener.listen()
        assert used not in processes.free_ports(900)


def test_ports_of_instance_are_not_allocated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "range").write_text("21002 60999")
    monkeypatch.setattr(processes, "_EPHEMERAL", tmp_path / "range")
    ports = processes.free_ports(4)
    gateway, mlflow, dashboard, agent = ports
    instance = Instance("id", f"http://127.0.0.1:{gateway}", f"http://127.0.0.1:{mlflow}", "", dashboard, agent)
    assert instance.ports == set(ports)
    assert not instance.ports & set(processes.free_ports(900, instance.ports))


def test_damaged_state_is_named(home: Path) -> None:
    home.mkdir()
    (home / "state.json").write_text("{")
    with pytest.raises(HostError, match=r"state.json is damaged"):
        LocalPlatform(home).status()


def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="MLPLATFORM_HOME"):
        LocalPlatform(tmp_path / "file" / "home").up()


def test_platform_with_dead_process_is_down(home: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    home.mkdir()
    gone_process = Process(gone.pid, 1.0)
    instance = Instance("mark", "http://127.0.0.1:9", "http://127.0.0.1:9", str(home / "ray"), processes=[gone_process])
    Home(home).save(instance)
    assert LocalPlatform(home).status() is None
    assert LocalPlatform(home).down() is True
    assert not (home / "state.json").exists()


def test_stop_ends_only_processes_of_instance(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_SECONDS", 1.0)
    marked = {**os.environ, MARK: "this-one"}
    stubborn = subprocess.Popen([sys.executable, "-c", STUBBORN], env=marked, start_new_session=True, stdout=-1)
    stranger = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    assert stubborn.stdout
    stubborn.stdout.readline()
    try:
        leader = psutil.Process(stubborn.pid)
        (child,) = leader.children()
        instance = Instance("this-one", "", "", str(home), processes=[Process(leader.pid, leader.create_time())])
        LocalPlatform(home)._stop(instance)
        assert not is_running(leader)
        assert not is_running(child)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        stubborn.wait()
        stubborn.stdout.close()


def test_process_with_reused_id_is_not_killed(home: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    try:
        instance = Instance("another", "", "", str(home), processes=[Process(stranger.pid, 1.0)])
        LocalPlatform(home)._stop(instance)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
