"""Output that several commands share."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TextIO


def protect_terminal() -> None:
    """Make everything that this process prints printable: values of jobs and models may control the terminal.

    `--help` alone is left as it is: it prints our own texts, in colors.
    """
    words = sys.argv[1:]
    if "--help" in words[: words.index("--") if "--" in words else None]:
        return
    from mlplatform.terminal import PrintableStream

    sys.stdout, sys.stderr = PrintableStream(sys.stdout), PrintableStream(sys.stderr)


def terminal() -> TextIO:
    """Return the standard output for text that controls the terminal; its values must be printable already."""
    raw: TextIO = getattr(sys.stdout, "raw", sys.stdout)
    return raw


def print_table(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table whose first column is never cut: it contains the id that other commands accept.

    Cells are printed as they are, brackets and colons included.
    """
    from rich.console import Console
    from rich.table import Column, Table

    from mlplatform.terminal import printable

    table = Table(Column(columns[0], no_wrap=True), *columns[1:], box=None)
    for row in rows:
        table.add_row(*map(printable, row))
    Console(file=terminal(), markup=False, emoji=False).print(table)


def human(size: int) -> str:
    """Return a number of bytes with a unit, as in `1.5 GB`."""
    value, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.{0 if units[0] == 'B' else 1}f} {units[0]}"


def span(*moments: datetime | None) -> str:
    """Return the known moments in this machine's time zone, as in `2026-11-22 10:00:00 to 2026-11-22 10:05:00`."""
    return " to ".join(f"{moment.astimezone():%Y-%m-%d %H:%M:%S}" for moment in moments if moment)


def exports(variables: Mapping[str, str]) -> str:
    """Return shell lines that export variables."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items()))
