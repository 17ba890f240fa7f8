"""Files of a template that change after they were imported."""

from __future__ import annotations

import shutil
import sys
import types
from pathlib import Path

import pytest

from mlplatform.warm.imports import Sources


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "above" / "package"
    folder.mkdir(parents=True)
    (folder / "module.py").write_text("VALUE = 1\n")
    return folder


@pytest.fixture
def sources(package: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    """The sources of a process that has loaded `module.py`."""
    monkeypatch.setattr(sys, "modules", {})
    found = Sources()
    module = types.ModuleType("module")
    module.__file__ = str(package / "module.py")
    sys.modules["module"] = module
    found.add_loaded(float("inf"))
    return found


def test_harmless_event_changes_nothing(sources: Sources, package: Path) -> None:
    (package / "__pycache__").mkdir()
    sources.look()
    assert sources.changed is None


def test_changed_file_is_named_until_it_is_restored(sources: Sources, package: Path) -> None:
    shutil.copytree(package, package.parent / "copy", copy_function=shutil.copy2)
    (package / "module.py").write_text("VALUE = 22\n")
    sources.look()
    assert sources.changed == str(package / "module.py")
    shutil.copy2(package.parent / "copy" / "module.py", package)
    sources.look()
    assert sources.changed is None


def test_file_written_while_it_was_imported_is_named(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "modules", {})
    found = Sources()
    module = types.ModuleType("module")
    module.__file__ = str(package / "module.py")
    sys.modules["module"] = module
    found.add_loaded(since=1.0)
    found.look()
    assert found.changed == str(package / "module.py")
