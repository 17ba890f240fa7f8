"""Route that returns the sums of the ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query

from mlplatform.api.base import MOST_ENTRIES
from mlplatform.api.usage import By, Report, Use, Window
from mlplatform_gateway.http.access import USERS
from mlplatform_gateway.usage.report import UsageReader


def routes(usage: UsageReader) -> APIRouter:
    """Return the route `GET /platform/usage`."""
    router = APIRouter()

    @router.get("/platform/usage", dependencies=[USERS], response_model_exclude_unset=True)
    async def get(window: Annotated[Window, Query()]) -> Report:
        """GPU and CPU time that people, teams or jobs have reserved in a time window, deleted jobs included.

        Reservations are clipped to the window; running attempts count until its end, which is at most the present time.
        An answer has 1,000 jobs at most.
        """
        # In whole seconds, so that a client that continues names the same window.
        now = int(datetime.now(UTC).timestamp())
        until = now if window.until is None else min(window.until, now)
        since = min(window.since, now)
        rows = await usage.read(window.by, _time(since), _time(until), window.after, MOST_ENTRIES)
        more = window.by is By.JOB and len(rows) == MOST_ENTRIES
        uses = [Use(**row._mapping) for row in rows]
        return Report(since=since, until=until, entries=uses, next=rows[-1].sequence if more else None)

    return router


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
