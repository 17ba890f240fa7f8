"""Report at the end of `make test-gpu`: the GPUs, each test with its figures, and what was left out and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest


@dataclass(frozen=True)
class Outcome:
    """A test's end.

    Attributes:
        test: its file and name.
        outcome: "passed", "failed" or "skipped".
        reason: of a skipped one, why.
        figures: measured values by name, which the test passed to `record_property`.
    """

    test: str
    outcome: str
    reason: str = ""
    figures: Sequence[tuple[str, object]] = field(default=())

    @classmethod
    def of(cls, report: pytest.TestReport) -> Outcome:
        # pytest's form of a skip: file, line, "Skipped: reason".
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
        return cls(report.nodeid.rpartition("/")[2], report.outcome, reason, report.user_properties)


def lines(devices: str, torch: str, outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield the lines of the report."""
    yield from devices.splitlines()
    yield f"torch: {torch}"
    skipped: dict[str, list[str]] = {}
    for end in outcomes:
        if end.outcome == "skipped":
            skipped.setdefault(end.reason, []).append(end.test)
            continue
        yield f"{end.outcome}: {end.test}"
        yield from (f"    {name}: {value}" for name, value in end.figures)
    for reason, tests in skipped.items():
        yield f"left out, because it {reason}:" if reason.startswith("needs ") else f"left out: {reason}"
        yield from (f"    {test}" for test in tests)
