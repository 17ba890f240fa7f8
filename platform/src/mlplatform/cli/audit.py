"""`mlplatform audit`: who did what, from where."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from typing import Annotated

import typer

from mlplatform.cli.output import print_table, span

_LIMIT = 100


def audit(
    since: Annotated[
        str | None, typer.Option(help="Only entries of this time span: a number and s, m, h, d or w, as in 7d.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Entries that are shown, the latest ones.")] = _LIMIT,
    as_json: Annotated[bool, typer.Option("--json", help="Print each entry as one line of JSON.")] = False,
) -> None:
    """Show who changed what; the newest last.

    Who submitted, stopped or deleted jobs, logged in or out, or uploaded packages; and at MLflow (kind mlflow), who
    changed registered models, versions, aliases, permissions or accounts, or deleted, restored or renamed anything. The
    principal of all who have the shared token is "shared token".
    """
    from mlplatform.client.audit import describe, read, seconds_in
    from mlplatform.client.connection import Connection
    from mlplatform.settings.job import settings

    begin = None if since is None else int(time.time()) - seconds_in(since)
    link = Connection(settings())
    try:
        entries = read(link, limit, None if begin is None else max(begin, 0))
    finally:
        link.close()
    if as_json:
        for entry in entries:
            print(json.dumps(entry))
        return
    if not entries:
        print("No entry.")
        return
    print_table(
        ["Time", "Principal", "Kind", "Address", "Action", "Change"],
        [
            (
                span(datetime.fromisoformat(entry["time"])),
                *(entry[name] for name in ("principal", "kind", "address")),
                f"{entry['verb']} {entry['object']}",
                describe(entry),
            )
            for entry in entries
        ],
    )
    if len(entries) == limit:
        print(f"The latest {limit} entries; --limit shows more.", file=sys.stderr)
