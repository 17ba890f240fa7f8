import io
import os
import subprocess
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from mlplatform.client import package
from mlplatform.errors import JobError


def names(folder: Path) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(package.build(folder)[1])).namelist()


def commit(folder: Path) -> None:
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=one"]):
        subprocess.run([*git, *words], check=True)


def test_package_excludes_what_ray_excludes(tmp_path: Path) -> None:
    for name in ("train.py", "lib/data.py", "__pycache__/train.pyc", ".venv/bin/python", "lib/__pycache__/data.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert names(tmp_path) == ["lib/data.py", "train.py"]


def test_package_excludes_git_ignored_files(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.pt\n")
    for name in ("train.py", "model.pt"):
        (tmp_path / name).write_text(name)
    commit(tmp_path)
    (tmp_path / "new.py").write_text("not yet added")
    assert names(tmp_path) == [".gitignore", "new.py", "train.py"]


def test_folder_inside_repository_is_packed_alone(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "train.py").write_text("1")
    (tmp_path / "other.py").write_text("2")
    commit(tmp_path)
    assert names(tmp_path / "jobs") == ["train.py"]


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


@pytest.mark.parametrize("committed", [True, False])
def test_package_includes_contents_of_linked_folder(committed: bool, tmp_path: Path) -> None:
    write(tmp_path, "job/train.py", "disk/photos/1.png", "disk/.git/config")
    (tmp_path / "job/data").symlink_to(tmp_path / "disk")
    (tmp_path / "job/data/back").symlink_to(tmp_path / "job")
    if committed:
        commit(tmp_path / "job")
    assert names(tmp_path / "job") == ["data/photos/1.png", "train.py"]


def test_nested_repositories_use_their_own_gitignore(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "lib/data.py", "lib/model.pt", "new/model.py")
    (tmp_path / "lib/.gitignore").write_text("*.pt\n")
    commit(tmp_path / "lib")
    commit(tmp_path)
    commit(tmp_path / "new")
    assert names(tmp_path) == ["lib/.gitignore", "lib/data.py", "new/model.py", "train.py"]


def test_gitignore_applies_outside_repositories(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "data/1.png", "lib/model.pt", "lib/data.py")
    (tmp_path / ".gitignore").write_text("/data/\n*.pt\n")
    assert names(tmp_path) == [".gitignore", "lib/data.py", "train.py"]


def test_ignored_folder_uses_its_own_gitignore(tmp_path: Path) -> None:
    write(tmp_path, "mine/train.py", "mine/model.pt")
    (tmp_path / ".gitignore").write_text("mine/\n")
    commit(tmp_path)
    (tmp_path / "mine/.gitignore").write_text("*.pt\n")
    assert names(tmp_path / "mine") == [".gitignore", "train.py"]
    (tmp_path / "mine/.gitignore").write_text("*\n")
    assert names(tmp_path / "mine") == [".gitignore", "model.pt", "train.py"], "the package is empty"


def test_folder_is_packed_without_git_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    write(tmp_path, "train.py", "lib/data.py", ".venv/bin/python")
    assert names(tmp_path) == ["lib/data.py", "train.py"]


def test_package_name_depends_on_content_only(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("one")
    first = package.build(tmp_path)
    os.utime(script, (1, 1))
    assert package.build(tmp_path) == first
    script.write_text("two")
    assert package.build(tmp_path)[0] != first[0]
    assert first[0].startswith("_ray_pkg_")


def test_package_over_rays_limit_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "MAX_BYTES", 1024)
    (tmp_path / "data.bin").write_bytes(os.urandom(4096))
    with pytest.raises(JobError, match=r"makes a package of more than .* move data out of it"):
        package.build(tmp_path)


def test_huge_folder_is_rejected_before_reading_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "MAX_BYTES", 1 << 20)
    (tmp_path / "data.bin").write_bytes(os.urandom(8 << 20))
    tracemalloc.start()
    with pytest.raises(JobError, match="makes a package of more than 1 MiB"):
        package.build(tmp_path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 6 << 20
