"""Files below a folder whose contents others may replace."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from mlplatform_gateway.logs.beneath import open_beneath


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def make_socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_PATH)  # a socket's path has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def test_regular_file_below_linked_root_is_opened(tmp_path: Path) -> None:
    (tmp_path / "real/logs").mkdir(parents=True)
    (tmp_path / "real/logs/a.log").write_bytes(b"line\n")
    (tmp_path / "node").symlink_to(tmp_path / "real")
    with open_beneath(tmp_path / "node", tmp_path / "node/logs/a.log") as file:
        assert file.read() == b"line\n"


@pytest.mark.parametrize("make", [make_pipe, make_link, make_socket, Path.mkdir])
def test_other_than_regular_file_is_refused_at_once(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "a.log")
    opened = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        open_beneath(tmp_path, tmp_path / "a.log")
    assert len(list(Path("/proc/self/fd").iterdir())) == opened


def test_linked_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/a.log").write_bytes(b"secret")
    (tmp_path / "node").mkdir()
    (tmp_path / "node/logs").symlink_to(tmp_path / "other")
    with pytest.raises(NotADirectoryError):
        open_beneath(tmp_path / "node", tmp_path / "node/logs/a.log")


def test_file_of_another_file_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_beneath(Path("/"), Path("/proc/meminfo"))
