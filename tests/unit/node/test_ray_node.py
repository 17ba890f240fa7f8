"""The `python` that a node puts first on the PATH of jobs."""

import subprocess
import sys
from pathlib import Path

import pytest

from mlplatform_warm.ray import node as ray_node


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
