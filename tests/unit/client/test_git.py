"""The record of a folder under git; reading it changes nothing there."""

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
    """A clean tree of two files in two folders."""
    for name in ("jobs/train.py", "docs/notes.md"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("one\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=one")
    return tmp_path


def test_a_clean_tree_has_a_commit_and_no_diff(repository: Path) -> None:
    found = client_git.describe(repository / "jobs", "python train.py")
    assert found == {"entrypoint": "python train.py", "git_commit": git(repository, "rev-parse", "HEAD").strip()}


@pytest.mark.parametrize("prepared", [False, True])
def test_outside_of_commits_there_is_only_the_command(tmp_path: Path, prepared: bool) -> None:
    if prepared:
        git(tmp_path, "init", "--quiet")
        (tmp_path / "train.py").write_text("one")
    assert client_git.describe(tmp_path, "python train.py") == {"entrypoint": "python train.py"}


def test_the_diff_of_the_folder_brings_its_commit_to_what_was_submitted(repository: Path) -> None:
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


def test_a_staged_file_is_in_the_diff(repository: Path) -> None:
    (repository / "jobs" / "staged.py").write_text("staged\n")
    git(repository, "add", "jobs/staged.py")
    assert "+staged" in (client_git.diff(repository / "jobs") or "")


def test_changes_too_large_for_metadata_are_said_to_be_missing(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Checksums: text that hardly compresses.
    lines = (str(zlib.crc32(number.to_bytes(2))) for number in range(30_000))
    (repository / "jobs" / "train.py").write_text("\n".join(lines))
    found = client_git.describe(repository / "jobs", "python train.py")
    said = capsys.readouterr().err
    assert "too many for the job's metadata" in said
    assert contract.unpack(found["git_diff"]) == f"# {said}"
    assert len(json.dumps(found)) < contract.MAX_PACKED


@pytest.mark.parametrize("kind", ["yaml", "json", "none"])
def test_the_folder_of_a_submission_is_found_where_ray_finds_it(kind: str, tmp_path: Path) -> None:
    if kind == "none":
        assert submit_hook._working_dir(None, None) is None
        return
    if kind == "json":
        assert submit_hook._working_dir(None, '{"working_dir": "jobs"}') == "jobs"
        return
    (tmp_path / "runtime.yaml").write_text("working_dir: jobs\n")
    assert submit_hook._working_dir(str(tmp_path / "runtime.yaml"), None) == "jobs"
