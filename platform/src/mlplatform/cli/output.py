"""Output that several commands share."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime


def print_table(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table whose first column is never cut: it contains the id that other commands accept.

    Cells are printed as they are, brackets and colons included.
    """
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(Column(columns[0], no_wrap=True), *columns[1:], box=None)
    for row in rows:
        table.add_row(*row)
    Console(markup=False, emoji=False).print(table)


def span(*moments: datetime | None) -> str:
    """Return the known moments in this machine's time zone, as in `2026-11-22 10:00:00 to 2026-11-22 10:05:00`."""
    return " to ".join(f"{moment.astimezone():%Y-%m-%d %H:%M:%S}" for moment in moments if moment)


def exports(variables: Mapping[str, str]) -> str:
    """Return shell lines that export variables."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items()))
