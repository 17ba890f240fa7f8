"""Variables of the shell that are named like settings of the stack."""

from __future__ import annotations

from collections.abc import Iterator

from mlplatform.stack import shell
from mlplatform.stack.checks.finding import Finding, Place


def exported(place: Place) -> Iterator[Finding]:
    """Yield the exported variables that differ from `.env`."""
    for problem in shell.problems(place.root):
        why = "The verbs of make and `mlplatform` use .env alone; plain `docker compose` would use these values."
        yield Finding(problem, why, f"unset {' '.join(shell.in_the_way(place.root))}")
