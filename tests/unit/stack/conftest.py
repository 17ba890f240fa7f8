"""A checkout before any set-up, and stand-ins of programs of the host."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout before any set-up."""
    shutil.copy(CHECKOUT / ".env.example", tmp_path)
    (tmp_path / "platform").mkdir()
    shutil.copy(CHECKOUT / "platform" / "pyproject.toml", tmp_path / "platform")
    shutil.copytree(CHECKOUT / "compose", tmp_path / "compose", ignore=shutil.ignore_patterns("*.generated.yaml"))
    return tmp_path


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Writes a program that takes precedence over the host's, by name and script; returns its file."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def write(name: str, script: str) -> Path:
        file = folder / name
        file.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        return file

    return write
