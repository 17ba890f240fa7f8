"""Conditions for a warm start: everything that is read while Python starts and imports must be the same."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from mlplatform_warm.recording import Record
from mlplatform_warm.variables import AFTER_FORK, is_read_early


def difference(record: Record, ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """Return the name of a variable whose difference a warm start would not show; None if there is none.

    Args:
        record: what the template's imports have read.
        ours: the environment under which the template imported.
        theirs: the environment of the program.
    """
    ours, theirs = _without_activation(ours), _without_activation(theirs)
    for name in sorted(ours.keys() | theirs.keys()):
        if name in AFTER_FORK or theirs.get(name) in (ours.get(name), record.exported.get(name, ours.get(name))):
            continue
        if name in record.variables or is_read_early(name):
            return name
    return None


def _without_activation(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables without those of an active virtual environment: imports look for none of its programs."""
    folder = environment.get("VIRTUAL_ENV", "")
    path = environment.get("PATH", "").removeprefix(f"{folder}/bin:")
    return {**environment, "PATH": path, "VIRTUAL_ENV": ""}


def known(record: Record) -> frozenset[str]:
    """Return the top-level modules that are loaded, that were looked for in vain, or that Python looks for at start."""
    loaded = {name.partition(".")[0] for name in sys.modules}
    return frozenset(loaded | record.missing | {"sitecustomize", "usercustomize"}) - {"__main__"}


def shadow(known: frozenset[str], folders: list[str]) -> str | None:
    """Return a path in the program's folders that a cold start would import, and a warm one would not.

    Args:
        known: modules as `known` returns them, from the template: a forked process that went through all modules would
            copy the memory that it shares with the template.
        folders: of the program.
    """
    for folder in folders:
        found = _importable(folder)
        for name in known.intersection(found):
            if not _is_where(name, found[name]):
                return found[name]
    return None


_FOLDER_BEHIND = re.compile(r"import site; site\.addsitedir\('(.*)'\)")

_HARMLESS_GROUPS = {"console_scripts", "gui_scripts", "pytest11"}
"""Groups of entry points that no import reads."""


def read_at_start(packages: str) -> str | None:
    """Return a file in an environment's packages that Python or imports read, and the template has not.

    Args:
        packages: folder of the environment's own packages, which is in front of the template's.
    """
    for path in sorted(Path(packages).glob("*.pth")):
        for line in filter(None, path.read_text().splitlines()):
            if not ((behind := _FOLDER_BEHIND.fullmatch(line)) and behind[1] in sys.path):
                return str(path)
    for path in sorted(Path(packages).glob("*/entry_points.txt")):
        if not set(re.findall(r"^\[(.+)\]", path.read_text(), re.MULTILINE)) <= _HARMLESS_GROUPS:
            return str(path)
    return None


def _importable(folder: str) -> dict[str, str]:
    """Return the top-level modules of a folder: name and path."""
    try:
        entries = os.listdir(folder or ".")  # noqa: PTH208 - names only
    except NotADirectoryError:
        return {"zipimport": folder}
    except OSError:
        return {}
    return {entry.partition(".")[0]: str(Path(folder, entry)) for entry in entries if entry != "__pycache__"}


def _is_where(name: str, path: str) -> bool:
    """Return whether the module was loaded from this very path, or would not be loaded from it."""
    found, origin = Path(path), getattr(sys.modules.get(name), "__file__", None) or ""
    if found.is_dir() and not (found / "__init__.py").exists():
        # A namespace package: a module or package of this name wins over it, wherever it is on the path.
        return bool(origin)
    if found.is_file() and not found.name.endswith((".py", ".pyc", ".so")):
        return True
    return origin.startswith(str(found))
