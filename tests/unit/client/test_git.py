"""Git information of a submitted folder; reading it does not change the repository."""

import json
import subprocess
import zlib
from pathlib import Path

import pytest

from mlplatform import contract
from mlplatform.client import git as client_git
from mlplatform.client import submit_hook


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A clean repository with two files in two folders."""
    for name in ("jobs/train.py", "docs/notes.md"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("one\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=one")
    return tmp_path


def test_clean_tree_has_commit_and_no_diff(repository: Path) -> None:
    found = client_git.describe(repository / "jobs", "python train.py")
    assert found == {"entrypoint": "python train.py", "git_commit": git(repository, "rev-parse", "HEAD").strip()}


@pytest.mark.parametrize("prepared", [False, True])
def test_folder_without_commits_records_only_command(tmp_path: Path, prepared: bool) -> None:
    if prepared:
        git(tmp_path, "init", "--quiet")
        (tmp_path / "train.py").write_text("one")
    assert client_git.describe(tmp_path, "python train.py") == {"entrypoint": "python train.py"}


def test_diff_applied_to_commit_restores_submission(repository: Path) -> None:
    folder = repository / "jobs"
    (folder / "train.py").write_bytes(b"two \xff\n")
    (folder / "new file.py").write_text("three\n")
    (folder / "data.bin").write_bytes(b"\0" * (client_git._MAX_NEW_FILE + 1))
    (repository / "docs" / "notes.md").write_text("not part of the job\n")
    before = git(repository, "status", "--porcelain")

    diff = contract.unpack(client_git.describe(folder, "python train.py")["git_diff"])
    assert git(repository, "status", "--porcelain") == before
    assert "+three" in diff
    assert "data.bin" not in diff
    assert "notes.md" not in diff

    git(repository, "stash", "--include-untracked")
    subprocess.run(["git", "-C", str(repository), "apply", "-"], input=diff.encode(), check=True)
    assert (folder / "new file.py").read_text() == "three\n"
    assert (folder / "train.py").read_text().startswith("two ")


def test_staged_file_is_in_diff(repository: Path) -> None:
    (repository / "jobs" / "staged.py").write_text("staged\n")
    git(repository, "add", "jobs/staged.py")
    assert "+staged" in (client_git.diff(repository / "jobs") or "")


def test_oversized_diff_is_replaced_by_notice(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Checksums are text that hardly compresses.
    lines = (str(zlib.crc32(number.to_bytes(2))) for number in range(30_000))
    (repository / "jobs" / "train.py").write_text("\n".join(lines))
    found = client_git.describe(repository / "jobs", "python train.py")
    notice = capsys.readouterr().err
    assert "too many for the job's metadata" in notice
    assert contract.unpack(found["git_diff"]) == f"# {notice}"
    assert len(json.dumps(found)) < contract.MAX_PACKED


@pytest.mark.parametrize("kind", ["yaml", "json", "none"])
def test_working_dir_is_found_as_ray_finds_it(kind: str, tmp_path: Path) -> None:
    if kind == "none":
        assert submit_hook._working_dir(None, None) is None
        return
    if kind == "json":
        assert submit_hook._working_dir(None, '{"working_dir": "jobs"}') == "jobs"
        return
    (tmp_path / "runtime.yaml").write_text("working_dir: jobs\n")
    assert submit_hook._working_dir(str(tmp_path / "runtime.yaml"), None) == "jobs"


def test_refusal_of_git_is_printed_in_one_line(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # As in a repository of another owner, which takes root to make.
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "true")
    assert client_git.describe(repository, "python x.py") == {"entrypoint": "python x.py"}
    printed = capfd.readouterr().err
    assert printed.startswith("The job's commit is not recorded: git refuses (fatal: detected dubious ownership")
    assert f"git config --global --add safe.directory {repository}" in printed
    assert printed.count("\n") == 1


def test_missing_git_is_printed_in_a_repository_only(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert "install it" in (client_git.refusal(repository / "jobs") or "")
    assert client_git.refusal(tmp_path_factory.mktemp("plain")) is None
