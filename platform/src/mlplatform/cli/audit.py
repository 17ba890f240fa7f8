"""`mlplatform audit`: who did what, from where."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlplatform.cli.output import print_table, seconds_in, span

if TYPE_CHECKING:
    from mlplatform.client.connection import Connection

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
    from mlplatform.client.connection import Connection

    begin = None if since is None else max(int(time.time()) - seconds_in(since), 0)
    with Connection() as link:
        entries = _read(link, limit, begin)
    if as_json:
        for entry in entries:
            print(json.dumps(entry))
        return
    print_table(
        ["Time", "Principal", "Kind", "Address", "Action", "Change"],
        [
            (
                span(entry["time"]),
                *(entry[name] for name in ("principal", "kind", "address")),
                f"{entry['verb']} {entry['object']}",
                _change(entry),
            )
            for entry in entries
        ],
        empty="No entry.",
    )
    if len(entries) == limit:
        print(f"The latest {limit} entries; --limit shows more.", file=sys.stderr)


def _read(link: Connection, limit: int, since: int | None) -> Sequence[Mapping[str, Any]]:
    """Return the latest entries since a Unix time, the oldest of them first."""
    from mlplatform.contract import AUDIT_ENTRIES

    found: list[Mapping[str, Any]] = []
    while (left := limit - len(found)) > 0:
        window = {"limit": min(left, AUDIT_ENTRIES)}
        if since is not None:
            window["since"] = since
        if found:
            window["before"] = found[0]["sequence"]
        entries = link.call("GET", "/platform/audit", params=window).json()["entries"]
        found[:0] = entries
        if len(entries) < window["limit"]:
            break
    return found


def _change(entry: Mapping[str, Any]) -> str:
    """Return what an action has changed, such as `state RUNNING -> STOPPED`; all values if it has added or deleted."""
    before, after = entry["before"], entry["after"]
    if before is None or after is None:
        return ", ".join(f"{name} {value}" for name, value in (before or after or {}).items())
    changed = (name for name in {**before, **after} if before.get(name) != after.get(name))
    return ", ".join(f"{name} {before.get(name)} -> {after.get(name)}" for name in changed)
