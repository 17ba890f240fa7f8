"""`mlplatform audit`: who did what, from where."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from mlplatform.cli.output import Json, print_json, print_table, span

_LIMIT = 100


def audit(
    since: Annotated[
        str | None, typer.Option(help="Only entries of this time span: a number and s, m, h, d or w, as in 7d.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Entries that are shown, the latest ones.")] = _LIMIT,
    as_json: Json = False,
) -> None:
    """Show who changed what; the newest last.

    Who submitted, stopped or deleted jobs, logged in or out, or uploaded packages; and at MLflow (kind mlflow), who
    changed registered models, versions, aliases, permissions or accounts, or deleted, restored or renamed anything. The
    principal of all who have the shared token is "shared token".
    """
    from mlplatform.client.audit import describe, read, seconds_in
    from mlplatform.client.connection import connected
    from mlplatform.settings.job import settings

    begin = None if since is None else int(time.time()) - seconds_in(since)
    with connected(settings()) as link:
        entries = read(link, limit, None if begin is None else max(begin, 0))
    if as_json:
        return print_json(entries)
    if not entries:
        print("No entry.")
        return
    print_table(
        ["Time", "Principal", "Kind", "Address", "Action", "Change"],
        [
            (
                *(span(entry.time), entry.principal, entry.kind, entry.address),
                f"{entry.verb} {entry.object}",
                describe(entry),
            )
            for entry in entries
        ],
    )
    if len(entries) == limit:
        print(f"The latest {limit} entries; --limit shows more.", file=sys.stderr)
