"""The gateway's audit log, as its clients read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlplatform import durations
from mlplatform.api.audit import MOST_ENTRIES, AuditEntry, Entries
from mlplatform.client.connection import Connection
from mlplatform.errors import SettingsError


def read(link: Connection, limit: int, since: int | None = None) -> Sequence[AuditEntry]:
    """Return the latest entries, the oldest of them first.

    Args:
        link: connection to the gateway.
        limit: number of entries at most.
        since: only entries from this Unix time on, in seconds.

    Raises:
        UnreachableError: nothing answers at the address.
        AccessError: the token is missing or rejected.
        JobError: the gateway is older than the log, or the address is not a gateway's.
    """
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


def seconds_in(span: str, option: str = "--since") -> int:
    """Return the seconds of a time span such as `7d`.

    Args:
        span: a number and a unit.
        option: the option that has this value, for the error.

    Raises:
        SettingsError: it is not a number and a unit.
    """
    try:
        return durations.seconds_in(span)
    except ValueError as error:
        raise SettingsError(f"Invalid {option} {span!r}: {error}.") from error


def describe(entry: AuditEntry) -> str:
    """Return what an action has changed, such as `state RUNNING -> STOPPED`; all values if it has added or deleted."""
    before, after = entry.before, entry.after
    if before is None or after is None:
        return ", ".join(f"{name} {value}" for name, value in (before or after or {}).items())
    changed = (name for name in {**before, **after} if before.get(name) != after.get(name))
    return ", ".join(f"{name} {before.get(name)} -> {after.get(name)}" for name in changed)
