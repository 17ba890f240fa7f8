"""Recorded import of the common packages in a template: the variables and modules that it asks for, and its files."""

from __future__ import annotations

import logging
import os
import random
import site
import stat
import sys
import sysconfig
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from mlplatform_warm.watch import Watch

LOWEST_PRIORITY = 19


@dataclass
class Record:
    """Everything that imports have read so far."""

    variables: set[str] = field(default_factory=set)
    """Environment variables that Python code asked for, set or not."""

    missing: set[str] = field(default_factory=set)
    """Top-level modules that were looked for in vain, such as optional dependencies."""

    exported: dict[str, str] = field(default_factory=dict)
    """Environment variables that imports have set, such as TORCHINDUCTOR_CACHE_DIR."""

    unseeded: list[random.Random] = field(default_factory=list)
    """Generators that were created without a seed; each process draws one for them again."""

    listings: set[str] = field(default_factory=set)
    """Modules that went through all environment variables, where the record does not tell what they looked for."""


class _Environment(os._Environ):  # type: ignore[type-arg]
    """`os.environ` that records the names that are asked for."""

    record: ClassVar[Record]

    _listed: ClassVar[deque[str]] = deque()
    """Names of a listing that is under way; their values are read in this order."""

    def __getitem__(self, name: Any) -> Any:
        if self._listed and self._listed[0] == name:
            self._listed.popleft()
        else:
            self._listed.clear()
            self.record.variables.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.record.variables.add(str(name))
        return super().__contains__(name)

    def __iter__(self) -> Iterator[Any]:
        # A copy, or a search for a pattern: no name is asked for.
        self.record.listings.add(_caller())
        names = list(super().__iter__())
        self._listed.clear()
        self._listed.extend(names)
        return iter(names)


def _caller() -> str:
    """Return the name of the module that lists the environment."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__") in ("os", "collections.abc", "_collections_abc"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


class _First:
    """Finder that sees each import begin."""

    def __init__(self, progress: Callable[[], None]) -> None:
        self._progress = progress

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        self._progress()


class _Last:
    """Finder that sees each name that no other finder knows."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if "." not in name:
            self._record.missing.add(name)


@contextmanager
def recorded(record: Record, progress: Callable[[], None]) -> Iterator[None]:
    """Record what imports read; call `progress` at each module that is imported."""
    seed = random.Random.seed

    def recording_seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        seed(self, a, version)
        if a is None:
            record.unseeded.append(self)

    first, last = _First(progress), _Last(record)
    original, before = type(os.environ), dict(os.environ)
    root = logging.root.level, list(logging.root.handlers)
    _Environment.record = record
    os.environ.__class__ = _Environment
    sys.meta_path.insert(0, first)
    sys.meta_path.append(last)
    random.Random.seed = recording_seed  # type: ignore[method-assign]
    try:
        yield
    finally:
        random.Random.seed = seed  # type: ignore[method-assign]
        sys.meta_path.remove(first)
        sys.meta_path.remove(last)
        os.environ.__class__ = original
        record.exported.update({name: value for name, value in os.environ.items() if name not in before})
        # A package that configures the root logger would decide what all programs log.
        logging.root.setLevel(root[0])
        logging.root.handlers[:] = root[1]


def import_all(modules: Iterable[str]) -> None:
    """Import modules; those that are not installed, or that fail, are left out, and the program meets their error."""
    for name in modules:
        try:
            import_module(name)
        except Exception:
            traceback.print_exc()
            for partial in [loaded for loaded in sys.modules if loaded == name or loaded.startswith(f"{name}.")]:
                del sys.modules[partial]


def import_in_background(modules: Iterable[str]) -> None:
    """Import modules at the lowest priority, and return when it is done.

    Niceness belongs to a thread and cannot be lowered again, so another thread imports, which ends with its imports.
    """

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        import_all(modules)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


class Sources:
    """The files that this process was loaded from, to notice that one of them has changed since.

    A look at 6,500 files takes 40 ms, twice per job, so folders are watched: their files are looked at again only if
    something has happened in one of the folders.
    """

    def __init__(self) -> None:
        users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        folders = {*site.getsitepackages(), *users, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        # A package that is installed, removed or upgraded changes the names; `.pth` files are edited in place.
        self._folders = {folder: _names(folder) for folder in folders}
        paths = [str(path) for folder in folders for path in Path(folder).glob("*.pth")]
        self._files = {path: _identity(path) for path in [*paths, sys.executable]}
        self._watch: Watch | None = None
        self._unwatched = (set(self._files), set(self._folders))
        self._found: str | None = None

    def add_loaded(self, since: float) -> None:
        """Note the modules that are new since the last call, and watch all folders for this process.

        Args:
            since: Unix time before they were imported; a module that was written later may differ from its file.
        """
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if path and path not in self._files:
                self._files[path] = _identity(path, since)
        self._follow()

    def look(self) -> None:
        """Look at the files again if something has happened since the last time; called before each fork."""
        if self._watch and self._found is None and self._watch.has_events():
            # Anew: a folder may have been replaced by an equal one, which nobody watches.
            self._follow()

    def _follow(self) -> None:
        """Watch all folders, and then look at all files: nothing may happen between the two."""
        self.close()
        self._watch = watch = Watch()
        self._unwatched = (
            {path for path in self._files if not _is_watched(watch, path)},
            {folder for folder in self._folders if not watch.add(folder)},
        )
        self._found = self._first_changed(self._files, self._folders)

    def changed(self) -> str | None:
        """Return a file or folder that was not what it had been at the last `look`; None if all were."""
        return self._found or self._first_changed(*self._unwatched)

    def close(self) -> None:
        """Stop watching, in this process."""
        if self._watch:
            self._watch.close()
            self._watch = None

    def _first_changed(self, files: Iterable[str], folders: Iterable[str]) -> str | None:
        changed_files = (path for path in files if _identity(path) != self._files[path])
        changed_folders = (folder for folder in folders if _names(folder) != self._folders[folder])
        return next(chain(changed_files, changed_folders), None)


def _is_watched(watch: Watch, path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    # A file with several names can be written under another one.
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and watch.add(path.rpartition("/")[0])


_CHANGED = (-1, -1)
"""Identity of no file."""


def _identity(path: str, since: float | None = None) -> tuple[int, int] | None:
    """Return the time and size of a file; None if it does not exist.

    Args:
        path: of the file.
        since: Unix time; a file that was written or replaced later has the identity `_CHANGED`.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 - 4000 files; pathlib takes three times as long
    except OSError:
        # Such as "_ops.py", which torch calls the file of `torch.ops`.
        return None
    # Installers give files old times of writing, but not of change.
    return _CHANGED if since and found.st_ctime > since else (found.st_mtime_ns, found.st_size)


def _names(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder)) - {"__pycache__"}  # noqa: PTH208
    except OSError:
        return frozenset()
