"""The log of process starts that a node creates when it is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlplatform.contract import START_LOG
from mlplatform.services import ray_node


def test_each_start_of_node_begins_new_log(tmp_path: Path) -> None:
    folder = tmp_path / "ray"
    logs: list[Path] = []
    for number in range(6):
        logs.append(ray_node._new_start_log(folder))
        os.utime(logs[-1], (number, number))
        (folder / "starts-of-others.jsonl").touch()
    assert len(set(logs)) == 6
    assert all(START_LOG.fullmatch(log.name) for log in logs)
    # The log shipper may lack the last lines of former logs.
    assert {path.name for path in folder.iterdir()} == {*(log.name for log in logs[-4:]), "starts-of-others.jsonl"}


@pytest.mark.parametrize("folder", ["plain", "with space", "a $HOME `x` \"q\" 'r' é", "long" * 60])
def test_python_of_jobs_starts_in_any_folder(folder: str, tmp_path: Path) -> None:
    python = tmp_path / folder / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    program = tmp_path / "program"
    program.write_text(f"{ray_node._shebang(str(python))}\nimport sys\nprint(sys.argv[1:], sys.flags.isolated)\n")
    program.chmod(0o700)
    shown = subprocess.run([program, "a b", "$c"], capture_output=True, text=True, check=True).stdout
    assert shown == "['a b', '$c'] 1\n"
