"""The gateway's report on reserved resources, as its clients read it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from mlplatform.api.usage import Report, Use
from mlplatform.client.audit import seconds_in
from mlplatform.client.connection import Connection
from mlplatform.errors import SettingsError


def read(link: Connection, by: str, since: int, until: int | None = None) -> Iterator[Use]:
    """Yield what each group has reserved in a time window, in the order of names, or of the jobs' arrival.

    Args:
        link: connection to the gateway.
        by: groups: `person`, `team` or `job`.
        since: begin of the window, Unix time in seconds.
        until: its end in the same form; None for the gateway's present time.

    Raises:
        UnreachableError: nothing answers at the address.
        AccessError: the token is missing or rejected.
        JobError: the gateway is older than the ledger, or the address is not a gateway's.
    """
    window: dict[str, Any] = {"by": by, "since": since} | ({} if until is None else {"until": until})
    while True:
        answer = link.read(Report, "GET", "/platform/usage", params=window)
        yield from answer.entries
        if answer.next is None:
            return
        window |= {"until": answer.until, "after": answer.next}


def moment(text: str, now: float) -> int:
    """Return the Unix time in seconds of a date or time, or of the beginning of a time span that ends now.

    Args:
        text: `30d`, `2026-11-01` or `2026-11-01T18:00`; without a zone, in the zone of this machine.
        now: Unix time in seconds.

    Raises:
        SettingsError: it is none of these.
    """
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp()))
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return max(0, int(now) - seconds_in(text))
    except SettingsError:
        raise SettingsError(
            f"Invalid time {text!r}: use a time span such as 30d (s, m, h, d or w), or a date such as 2026-11-01."
        ) from None
