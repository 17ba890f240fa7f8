import io
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from mlplatform import packages
from mlplatform.errors import JobError


def names(folder: Path) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(packages.build(folder)[1])).namelist()


def commit(folder: Path) -> None:
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=one"]):
        subprocess.run([*git, *words], check=True)


def test_a_folder_is_packed_without_what_ray_leaves_out(tmp_path: Path) -> None:
    for name in ("train.py", "lib/data.py", "__pycache__/train.pyc", ".venv/bin/python", "lib/__pycache__/data.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert names(tmp_path) == ["lib/data.py", "train.py"]


def test_what_git_ignores_stays_behind(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.pt\n")
    for name in ("train.py", "model.pt"):
        (tmp_path / name).write_text(name)
    commit(tmp_path)
    (tmp_path / "new.py").write_text("not yet added")
    assert names(tmp_path) == [".gitignore", "new.py", "train.py"]


def test_a_folder_inside_a_repository_is_packed_alone(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "train.py").write_text("1")
    (tmp_path / "other.py").write_text("2")
    commit(tmp_path)
    assert names(tmp_path / "jobs") == ["train.py"]


def test_the_name_follows_the_content_and_not_the_time(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("one")
    first = packages.build(tmp_path)
    os.utime(script, (1, 1))
    assert packages.build(tmp_path) == first
    script.write_text("two")
    assert packages.build(tmp_path)[0] != first[0]
    assert first[0].startswith("_ray_pkg_")


def test_a_package_that_ray_would_refuse_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "MAX_BYTES", 1024)
    (tmp_path / "data.bin").write_bytes(os.urandom(4096))
    with pytest.raises(JobError, match=r"makes a package of .* move data out of it"):
        packages.build(tmp_path)
