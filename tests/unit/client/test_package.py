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


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def commit(folder: Path) -> None:
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=one"]):
        subprocess.run([*git, *words], check=True)


def test_package_excludes_what_ray_excludes(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "lib/data.py", "__pycache__/train.pyc", ".venv/bin/python", "lib/__pycache__/data.pyc")
    assert names(tmp_path) == ["lib/data.py", "train.py"]


def test_package_excludes_git_ignored_files(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.pt\n")
    write(tmp_path, "train.py", "model.pt")
    commit(tmp_path)
    (tmp_path / "new.py").write_text("not yet added")
    assert names(tmp_path) == [".gitignore", "new.py", "train.py"]


def test_folder_inside_repository_is_packed_alone(tmp_path: Path) -> None:
    write(tmp_path, "jobs/train.py", "other.py")
    commit(tmp_path)
    assert names(tmp_path / "jobs") == ["train.py"]


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


@pytest.mark.parametrize("kind", ["repository", "folder", "without git"])
def test_package_keeps_empty_folders(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "train.py", "lib/data.py", "cache/x.bin", ".git/ignored")
    (tmp_path / ".git/ignored").unlink()
    (tmp_path / ".git").rmdir()
    (tmp_path / ".gitignore").write_text("/cache/\n*.egg\n")
    for name in ("runs/new/deep", "lib/out", "x.egg", "__pycache__", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "elsewhere")
    if kind == "repository":
        commit(tmp_path)
    kept = [".gitignore", "elsewhere/", "lib/data.py", "lib/out/", "linked/", "runs/new/deep/", "train.py"]
    if kind == "without git":
        monkeypatch.setenv("PATH", "")
        kept = sorted([*kept, "cache/x.bin", "x.egg/"])
    assert names(tmp_path) == kept
    target = tmp_path.with_name(f"{tmp_path.name}-unpacked")
    zipfile.ZipFile(io.BytesIO(package.build(tmp_path)[1])).extractall(target)
    assert (target / "runs/new/deep").is_dir()
    first = package.build(tmp_path)[0]
    (tmp_path / "runs/other").mkdir()
    assert package.build(tmp_path)[0] != first


def test_submodule_and_worktree_are_packed_with_empty_folders(tmp_path: Path) -> None:
    write(tmp_path, "library/model.py", "job/train.py")
    commit(tmp_path / "library")
    commit(tmp_path / "job")
    git = ["git", "-C", str(tmp_path / "job"), "-c", "user.name=a", "-c", "user.email=a@b"]
    add = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "library"), "lib"]
    for words in (add, ["commit", "--quiet", "--message=two"], ["worktree", "add", "--quiet", str(tmp_path / "tree")]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "job/lib/out").mkdir()
    (tmp_path / "tree/out").mkdir()
    assert names(tmp_path / "job") == [".gitmodules", "lib/model.py", "lib/out/", "train.py"]
    assert names(tmp_path / "tree") == [".gitmodules", "lib/", "out/", "train.py"]


def test_odd_names_and_modes_are_kept(tmp_path: Path) -> None:
    odd = ["two\nlines.py", "back\\slash", " led", "e\u0301", "\u00e9", "Case", "case", "-", "a;b$(c)", "n" * 255]
    for name in odd:
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (-(10**9), -(10**9)))
    (tmp_path / "Case").chmod(0o755)
    assert names(tmp_path) == sorted(odd)
    for entry in zipfile.ZipFile(io.BytesIO(package.build(tmp_path)[1])).infolist():
        assert entry.external_attr >> 16 & 0o777 == (tmp_path / entry.filename).stat().st_mode & 0o777


@pytest.mark.parametrize("committed", [True, False])
def test_special_files_are_left_out_with_a_sentence(
    committed: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "train.py")
    (tmp_path / "gone.csv").symlink_to("/nowhere/at/all")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "around").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    if committed:
        commit(tmp_path)
    assert names(tmp_path) == ["train.py"]
    printed = capfd.readouterr().err
    assert printed.count("\n") == 1
    for text in ("'gone.csv' (a link to nothing)", "'loop'", "'around' (a link to a folder around it)", "'pipe'"):
        assert text in printed


def test_name_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    Path(tmp_path, os.fsdecode(b"gr\xf6\xdfe.csv")).write_text("latin-1")
    with pytest.raises(JobError, match=r"is not UTF-8.*rename it"):
        package.build(tmp_path)


def test_file_that_cannot_be_read_is_rejected(tmp_path: Path) -> None:
    # The tests may run as root, who can read everything but this.
    (tmp_path / "memory").symlink_to("/proc/self/mem")
    with pytest.raises(JobError, match=r"cannot be read \(.*\), so the job would lack it"):
        package.build(tmp_path)


@pytest.mark.parametrize("command", ["python local_a.py", """bash x ./local_a.py '{"a": 1}'""", 'a "local_a.py'])
def test_ignored_file_that_command_names_is_packed(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "train.py", "local_a.py", "local_b.py")
    (tmp_path / ".gitignore").write_text("local_*\n")
    commit(tmp_path)
    expected = [".gitignore", "train.py"]
    if '"local' not in command:
        expected.insert(1, "local_a.py")
    with zipfile.ZipFile(io.BytesIO(package.build(tmp_path, f"{command} {'x' * 5000} /etc/passwd ../x")[1])) as found:
        assert found.namelist() == expected
    assert ("although git ignores it" in capfd.readouterr().err) == ("local_a.py" in expected)
