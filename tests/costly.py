"""Costly tests: CI runs those whose code has changed since they last passed, and a few others drawn at random.

Such a test names the files and folders that it covers, relative to the package or to the checkout:

    @pytest.mark.costly("stack/backup.py", "compose")

`passed.txt` has the digest of these, and of the test's own file, in the state in which the test last passed. Whoever
names a file, or one test, runs it in any case, and `make soak` runs all. With `long=True`, a test of five minutes or
more is never drawn.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
import selection

TESTS = Path(__file__).parent
CHECKOUT = TESTS.parent
PACKAGE = "platform/src/mlplatform"
PASSED = TESTS / "passed.txt"

CHANGED_AT_MOST = 5
"""Costly tests of one tier that CI runs because of changes: on two slow cores, with the other tier beside it, each
takes one to three minutes, and the long ones ten."""

DRAWN = 1
"""Others that CI runs besides."""


class NothingCoveredError(Exception):
    """A test names a path that has no files."""


def choose(items: Iterable[pytest.Item], seed: str) -> selection.Selection:
    """Mark the costly tests that this run leaves out as `soak`.

    Args:
        items: all tests of a tier.
        seed: state of the repository; the same seed draws the same tests.

    Returns:
        The names of the tests that run, and of those that changed but are left out because too many have.
    """
    costly: dict[str, list[pytest.Item]] = {}
    for item in items:
        if digest(item) and not item.get_closest_marker("soak"):
            costly.setdefault(name(item), []).append(item)
    chosen = selection.select(
        {each: digest(cases[0]) for each, cases in costly.items()},
        own=costly,
        long=[each for each, cases in costly.items() if is_long(cases[0])],
        passed=selection.read(PASSED),
        share=DRAWN,
        seed=seed,
        most=CHANGED_AT_MOST,
    )
    for left in costly.keys() - {*chosen.changed, *chosen.drawn}:
        for item in costly[left]:
            item.add_marker(pytest.mark.soak)
    return chosen


class Record:
    """Record of the costly tests that pass in this run; it counts against a test if one of its cases fails."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    def note(self, item: pytest.Item, passed: bool) -> None:
        """Write whether a test has passed in its current state, if it is a costly one."""
        value, test = digest(item), name(item)
        if not passed:
            self._failed.add(test)
        if value:
            known = selection.read(PASSED)
            selection.record(test, "failed" if test in self._failed else value, known, PASSED)


def name(item: pytest.Item) -> str:
    """Path and function of a test, without its parameters; only the path if the whole file is marked."""
    path = item.path.relative_to(TESTS).as_posix()
    marked = [node for node, _ in item.iter_markers_with_node("costly")]
    whole = any(isinstance(node, pytest.Module) for node in marked)
    return path if whole else f"{path}::{item.name.partition('[')[0]}"


def is_long(item: pytest.Item) -> bool:
    """Return whether a test runs only when it has changed."""
    return any(marker.kwargs.get("long") for marker in item.iter_markers("costly"))


def digest(item: pytest.Item) -> str:
    """Digest of a test's file and of the code that it covers; empty if the test is not costly."""
    paths = [str(path) for marker in item.iter_markers("costly") for path in marker.args]
    return digest_of((item.path.relative_to(CHECKOUT).as_posix(), *paths)) if paths else ""


@cache
def digest_of(paths: tuple[str, ...], checkout: Path | None = None) -> str:
    """Digest of files and of all files in folders, by their paths in the package or the checkout.

    Raises:
        NothingCoveredError: a path has no files.
    """
    checkout = checkout or CHECKOUT
    hashed = hashlib.sha256()
    for path in sorted(set(paths)):
        place = next((root for root in (checkout / PACKAGE / path, checkout / path) if root.exists()), checkout / path)
        found = [place] if place.is_file() else sorted(place.rglob("*"))
        files = [file for file in found if file.is_file() and "__pycache__" not in file.parts]
        if not files:
            raise NothingCoveredError(f"A costly test covers {path!r}, which has no files; correct its mark.")
        for file in files:
            for part in (file.relative_to(checkout).as_posix().encode(), file.read_bytes()):
                hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()[:16]


def state() -> str:
    """The commit; costly tests are drawn again for each."""
    git = ("git", "rev-parse", "HEAD")
    return subprocess.run(git, cwd=CHECKOUT, capture_output=True, text=True, check=False).stdout
