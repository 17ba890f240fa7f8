"""Numbers of what the stack tests tried, which the end of their output lists."""

from __future__ import annotations

from collections import Counter

import pytest

_figures: Counter[str] = Counter()


def count(what: str, number: int = 1) -> None:
    """Add to a figure, which is named with its unit: "paths tried without credentials"."""
    _figures[what] += number


def write(terminal: pytest.TerminalReporter) -> None:
    if _figures:
        terminal.section("figures")
        for what, number in sorted(_figures.items()):
            terminal.line(f"figure: {number:8d}  {what}")
