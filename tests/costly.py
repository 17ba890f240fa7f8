"""Costly tests: CI runs those whose code has changed since they last passed, and a few others drawn at random.

Such a test names the files and folders that it covers, relative to the package or to the checkout:

    @pytest.mark.costly("stack/backup.py", "compose")

`passed.txt` has the digest of these, and of the test's own file, in the state in which the test last passed. Whoever
names a file, or one test, runs it in any case. With `long=True`, a test of five minutes or more is never drawn.

`@pytest.mark.soak("compose")` marks a repetition that only `make soak` runs. It names its files too, if no mark
`costly` does, and is recorded on a line of its own. `make soak` leaves out what has passed in its present state, so a
run that was interrupted continues with the next.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import selection

TESTS = Path(__file__).parent
CHECKOUT = TESTS.parent
PACKAGE = "platform/src/mlplatform"
PASSED = TESTS / "passed.txt"

CHANGED_AT_MOST = 3
"""Costly tests of one tier that CI runs because of changes: on two slow cores, with the other tier beside it, each
takes one to three minutes, and the long ones ten. With five, CI once exceeded its 70 minutes."""

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
        if digest(item) and not is_repetition(item):
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
            item.add_marker(pytest.mark.soak(left=True))
    return chosen


def has_passed(item: pytest.Item) -> bool:
    """Return whether a costly test, a repetition or a lesson has passed in its present state."""
    value = digest(item)
    return item.get_closest_marker("passed") is not None or (
        bool(value) and selection.read(PASSED).get(name(item)) == value
    )


@dataclass(frozen=True)
class Entry:
    """A test's line in `passed.txt`; the reports of its cases carry it, from other processes too.

    Attributes:
        name: path and function of the test.
        digest: of its present state.
        cases: number of its cases in this run.
    """

    name: str
    digest: str
    cases: int


def entry(item: pytest.Item) -> Entry | None:
    """Entry of a costly test or repetition; None of another test."""
    value = digest(item)
    return Entry(name(item), value, cases(item.session)[name(item)]) if value else None


def cases(session: pytest.Session) -> Counter[str]:
    """Number of cases of each costly test in this run, by name."""
    if CASES not in session.stash:
        session.stash[CASES] = Counter(name(item) for item in session.items if digest(item))
    return session.stash[CASES]


CASES = pytest.StashKey[Counter[str]]()


class Record:
    """Plugin that records the costly tests that pass in this run: at least one case passes, and none fails."""

    def __init__(self) -> None:
        self._ended: Counter[str] = Counter()
        self._passed: set[str] = set()
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write that a test has failed, or that the last of its cases has passed."""
        if not (found := getattr(report, "entry", None)):
            return
        entry = Entry(**found)
        if report.failed:
            self._failed.add(entry.name)
            self._write(entry.name, "failed")
        elif report.when == "call" and report.passed:
            self._passed.add(entry.name)
        elif report.when == "teardown":
            self._ended[entry.name] += 1
            if self._ended[entry.name] == entry.cases and entry.name in self._passed - self._failed:
                self._write(entry.name, entry.digest)

    def _write(self, name: str, value: str) -> None:
        selection.record(name, value, selection.read(PASSED), PASSED)


def name(item: pytest.Item) -> str:
    """Path and function of a test, without its parameters; only the path if the whole file is marked `costly`."""
    path = item.path.relative_to(TESTS).as_posix()
    marked = [node for node, _ in item.iter_markers_with_node("costly")]
    whole = any(isinstance(node, pytest.Module) for node in marked)
    test = path if whole else f"{path}::{item.name.partition('[')[0]}"
    return f"{test} (soak)" if is_repetition(item) else test


def is_repetition(item: pytest.Item) -> bool:
    """Return whether a test itself is marked `soak`, instead of being left out of this run by `choose`."""
    return any("left" not in marker.kwargs for marker in item.iter_markers("soak"))


def is_long(item: pytest.Item) -> bool:
    """Return whether a test runs only when it has changed."""
    return any(marker.kwargs.get("long") for marker in item.iter_markers("costly"))


def digest(item: pytest.Item) -> str:
    """Digest of a test's file and of the code that it covers; empty if the test names no code."""
    marks = (*item.iter_markers("costly"), *item.iter_markers("soak"))
    paths = [str(path) for marker in marks for path in marker.args]
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
