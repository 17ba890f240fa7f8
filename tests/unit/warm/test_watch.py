"""Watches on folders, and the look at files that they replace."""

import os
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlplatform_warm import recording
from mlplatform_warm.recording import Sources
from mlplatform_warm.watch import Watch


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "above" / "package"
    folder.mkdir(parents=True)
    (folder / "module.py").write_text("VALUE = 1\n")
    return folder


@pytest.fixture
def watch() -> Iterator[Watch]:
    begun = Watch()
    yield begun
    begun.close()


def replace(package: Path) -> None:
    new = package.parent / "new"
    new.write_text("VALUE = 2\n")
    new.replace(package / "module.py")


def swap_folder(package: Path) -> None:
    shutil.copytree(package.parent, package.parents[1] / "other")
    package.parent.rename(package.parents[1] / "old")
    (package.parents[1] / "other").rename(package.parent)


@pytest.mark.parametrize(
    "change",
    [
        lambda package: (package / "module.py").write_text("VALUE = 2\n"),
        lambda package: os.utime(package / "module.py", (1, 1)),
        lambda package: (package / "module.py").unlink(),
        lambda package: (package / "more.py").touch(),
        lambda package: shutil.rmtree(package.parent),
        replace,
        swap_folder,
    ],
    ids=["edited", "touched", "deleted", "added", "folder deleted", "replaced", "folder above replaced"],
)
def test_watch_notices_change_once(change: Callable[[Path], object], package: Path, watch: Watch) -> None:
    assert watch.add(str(package))
    assert not watch.has_events()
    change(package)
    assert watch.has_events()
    assert not watch.has_events()


def test_watch_ignores_neighbors_of_folder(package: Path, watch: Watch) -> None:
    assert watch.add(str(package))
    (package.parent / "neighbor").mkdir()
    (package.parents[1] / "file").write_text("text")
    assert not watch.has_events()


def test_overflowing_watch_has_events(package: Path, watch: Watch) -> None:
    assert watch.add(str(package))
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    # Equal events in a row are queued once.
    for number in range(most + 1):
        (package.parent / f"neighbor-{number % 2}").touch()
    assert watch.has_events()


def test_folder_that_others_may_change_is_not_watched(package: Path, watch: Watch) -> None:
    link = package.parents[1] / "link"
    link.symlink_to(package)
    assert not watch.add(str(link))
    assert not watch.add("/proc/self")
    assert not watch.add("relative")
    assert not watch.add(str(package / "missing"))


@pytest.fixture
def sources(package: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sources]:
    """The sources of a process that has loaded `module.py` and a module with two names."""
    monkeypatch.setattr(sys, "modules", {})
    found = Sources()
    linked = package / "linked.py"
    linked.write_text("VALUE = 1\n")
    (package.parents[1] / "cache.py").hardlink_to(linked)
    for path in (package / "module.py", linked):
        module = types.ModuleType(path.stem)
        module.__file__ = str(path)
        sys.modules[path.stem] = module
    found.add_loaded(float("inf"))
    yield found
    found.close()


def test_unchanged_files_are_not_looked_at(sources: Sources, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    identity = recording._identity
    monkeypatch.setattr(recording, "_identity", lambda path: looked.append(path) or identity(path))
    sources.look()
    assert sources.changed() is None
    assert str(package / "module.py") not in looked
    assert str(package / "linked.py") in looked


def test_harmless_event_changes_nothing(sources: Sources, package: Path) -> None:
    (package / "__pycache__").mkdir()
    sources.look()
    assert sources.changed() is None


@pytest.mark.parametrize("written", ["above/package/module.py", "above/package/linked.py", "cache.py"])
def test_changed_file_is_named(written: str, sources: Sources, package: Path) -> None:
    path = package.parents[1] / written
    path.write_text("VALUE = 22\n")
    sources.look()
    name = "linked.py" if written == "cache.py" else path.name
    assert sources.changed() == str(package / name)


def test_file_written_before_watch_began_is_named(sources: Sources, package: Path) -> None:
    sources.close()
    (package / "module.py").write_text("VALUE = 22\n")
    sources.add_loaded(float("inf"))
    assert sources.changed() == str(package / "module.py")


@pytest.mark.parametrize("replace_folder", [True, False], ids=["folder", "file by link"])
def test_file_is_watched_after_equal_replacement(replace_folder: bool, sources: Sources, package: Path) -> None:
    module, elsewhere = package / "module.py", package.parents[1] / "elsewhere.py"
    if replace_folder:
        swap_folder(package)
    else:
        module.rename(elsewhere)
        module.symlink_to(elsewhere)
    sources.look()
    assert sources.changed() is None
    (module if replace_folder else elsewhere).write_text("VALUE = 22\n")
    sources.look()
    assert sources.changed() == str(module)
