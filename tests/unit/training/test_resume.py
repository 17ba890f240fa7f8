"""The path from which a training resumes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mlplatform


class Stored:
    """A stored checkpoint whose files are on this machine only while its directory is in use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        self.folder.mkdir()
        (self.folder / "state.ckpt").write_text("epoch 3")
        yield str(self.folder)
        (self.folder / "state.ckpt").unlink()
        self.folder.rmdir()


def test_first_start_has_no_path() -> None:
    with mlplatform.resume_path(None, "state.ckpt") as path:
        assert path is None


def test_restart_reads_file_within_block(tmp_path: Path) -> None:
    checkpoint: Any = Stored(tmp_path / "checkpoint_000003")
    with mlplatform.resume_path(checkpoint, "state.ckpt") as path:
        assert path == str(tmp_path / "checkpoint_000003" / "state.ckpt")
        assert Path(path).read_text() == "epoch 3"
    assert not Path(path).exists()


def test_path_without_file_is_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint: Any = Stored(Path("checkpoint"))
    with mlplatform.resume_path(checkpoint) as path:
        assert path == str(tmp_path / "checkpoint")


def test_training_error_propagates(tmp_path: Path) -> None:
    checkpoint: Any = Stored(tmp_path / "checkpoint")
    with pytest.raises(RuntimeError, match="out of memory"), mlplatform.resume_path(checkpoint):
        raise RuntimeError("out of memory")
