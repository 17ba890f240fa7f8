"""Times at which a schedule submits a job: a cron expression in a time zone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

from croniter import croniter

from mlplatform.errors import JobError

_FIELD = re.compile(r"([\d*/,#-]|[A-Za-z]{3})+", re.ASCII)
"""Digits, names and signs. croniter also reads random and hashed times, which differ from one call to the next."""

_FORMER = timedelta(hours=3)
"""A clock is never changed by more than this, so that an earlier change no longer matters."""

_SKIPPED = timedelta(hours=1)
"""Longest time that a clock skips for summer time."""


def next_after(expression: str, zone: str, moment: datetime) -> datetime:
    """Return the first time of a schedule after a moment, in UTC.

    Each time on the clock counts once: of a repeated hour, the first pass counts, and a skipped time moves later by the
    length of the skip. croniter gets no time zone, because its results in these hours depend on where it starts.

    Raises:
        JobError: the expression or the zone is invalid, or there is no such time.
    """
    try:
        local = ZoneInfo(zone)
        if len(fields := expression.split()) != 5 or not all(map(_FIELD.fullmatch, fields)):
            raise ValueError("it needs minute, hour, day of the month, month and day of the week")
        clock, former = (at.astimezone(local).replace(tzinfo=None) for at in (moment, moment - _FORMER))
        # After the clock has skipped an hour, times of that hour are still to come.
        clocks: Iterator[datetime] = croniter(expression, min(clock, former + _FORMER)).all_next(datetime)
        times = (at.replace(tzinfo=local).astimezone(UTC) for at in clocks)
        found = next(at for at in times if at > moment)
        # Where less than an hour is skipped, as on Lord Howe, times after it may precede those of it.
        found = min([found, *(at for at in takewhile(lambda at: at < found + _SKIPPED, times) if at > moment)])
    except (ValueError, LookupError, TypeError, OSError) as error:
        raise JobError(
            f"Invalid schedule {expression[:100]!r} in time zone {zone[:100]!r} ({error}); write them as in "
            "'0 3 * * *' and 'Europe/Berlin'."
        ) from error
    return found


def on_clock(moment: datetime, zone: str) -> str:
    """Return a time on the clocks of a zone, for people."""
    return f"{moment.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M} ({zone})"
