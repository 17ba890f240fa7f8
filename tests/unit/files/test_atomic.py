"""Files that appear complete or not at all."""

from pathlib import Path

import pytest

from mlplatform.files import atomic


def write(path: Path, text: str, error: Exception | None = None) -> None:
    with atomic.new_file(path) as draft:
        draft.write_text(text)
        draft.chmod(0o444)
        if error:
            raise error


def test_file_appears_atomically_with_its_mode(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("old")
    write(tmp_path / "state", "new")
    assert (tmp_path / "state").read_text() == "new"
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o444
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_failed_write_keeps_old_file(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("old")
    with pytest.raises(ValueError, match="half way"):
        write(tmp_path / "state", "new", ValueError("half way"))
    assert (tmp_path / "state").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_missing_folder_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "missing" / "state", "new")
