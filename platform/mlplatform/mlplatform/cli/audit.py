"""`mlplatform audit`: who did what, from where."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlplatform.cli.output import Json, print_list, seconds_in, span

if TYPE_CHECKING:
    from mlplatform.api.audit import AuditEntry
    from mlplatform.client.connection import Connection

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
    from mlplatform.client.connection import Connection

    begin = None if since is None else max(int(time.time()) - seconds_in(since), 0)
    with Connection() as link:
        entries = _read(link, limit, begin)
    print_list(entries, as_json, ["Time", "Principal", "Kind", "Address", "Action", "Change"], _row, "No entry.")
    if len(entries) == limit and not as_json:
        print(f"The latest {limit} entries; --limit shows more.", file=sys.stderr)


def _read(link: Connection, limit: int, since: int | None) -> Sequence[AuditEntry]:
    """Return the latest entries since a Unix time, the oldest of them first."""
    from mlplatform.api.audit import Entries
    from mlplatform.api.base import MOST_ENTRIES

    found: list[AuditEntry] = []
    while (left := limit - len(found)) > 0:
        window: dict[str, Any] = {"limit": min(left, MOST_ENTRIES)}
        if since is not None:
            window["since"] = since
        if found:
            window["before"] = found[0].sequence
        entries = link.read(Entries, "GET", "/platform/audit", params=window).entries
        found[:0] = entries
        if len(entries) < window["limit"]:
            break
    return found


def _row(entry: AuditEntry) -> tuple[str, ...]:
    who = (span(entry.time), entry.principal, entry.kind, entry.address)
    return (*who, f"{entry.verb} {entry.object}", _change(entry))


def _change(entry: AuditEntry) -> str:
    """Return what an action has changed, such as `state RUNNING -> STOPPED`; all values if it has added or deleted."""
    before, after = entry.before, entry.after
    if before is None or after is None:
        return ", ".join(f"{name} {value}" for name, value in (before or after or {}).items())
    changed = (name for name in {**before, **after} if before.get(name) != after.get(name))
    return ", ".join(f"{name} {before.get(name)} -> {after.get(name)}" for name in changed)
