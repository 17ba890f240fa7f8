"""The interpreter that `platform/venv.sh` chooses, on hosts whose python3 is too old."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "platform" / "venv.sh"
OLD = '#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.10.12" && exit\nexit 1\n'


def make_venv(folder: Path, **interpreters: str) -> subprocess.CompletedProcess[str]:
    """Run the script where only these interpreters are on the PATH."""
    (folder / "bin").mkdir()
    for name, content in interpreters.items():
        (folder / "bin" / name.replace("_", ".")).write_text(content)
        (folder / "bin" / name.replace("_", ".")).chmod(0o755)
    for program in ("id", "sh"):
        (folder / "bin" / program).symlink_to(str(shutil.which(program)))
    env = {**os.environ, "PATH": str(folder / "bin")}
    command = ["sh", str(SCRIPT), str(folder / "a venv")]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_old_python_is_named_with_way_out(tmp_path: Path) -> None:
    done = make_venv(tmp_path, python3=OLD)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Python 3.11 or later is needed, but there is Python 3.10.12" in done.stderr
    assert "python3.11-venv" in done.stderr


def test_newer_python_beside_old_one_is_used(tmp_path: Path) -> None:
    done = make_venv(tmp_path, python3=OLD, python3_12=f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a venv" / "bin" / "pip").is_file()
