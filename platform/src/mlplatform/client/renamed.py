"""Options that were renamed in 0.2: the old names work until 1.0, each with a one-sentence notice."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

RESTARTS = {"retries": "max_restarts_on_failure", "max_losses": "max_restarts_on_loss"}
"""Old and new names of the limits on restarts, in Python and in job.toml."""


def renamed(old: str, old_value: int | None, new: str, new_value: int | None) -> int | None:
    """Return the value of an option that may be set under its old name; print a notice if it is."""
    if old_value is None:
        return new_value
    print(f"{old} is now called {new}; the old name works until 1.0.", file=sys.stderr)
    return old_value if new_value is None else new_value


def with_new_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a job.toml under their current names; print a notice for each that was renamed."""
    current = {key: value for key, value in values.items() if key not in RESTARTS}
    for old in RESTARTS.keys() & values.keys():
        new = RESTARTS[old]
        current[new] = renamed(old, values[old], new, current.get(new))
    return current
