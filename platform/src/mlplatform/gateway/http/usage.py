"""Route that returns the sums of the ledger."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.contract import USAGE_ENTRIES
from mlplatform.gateway.errors import RequestError
from mlplatform.gateway.http.logs import number_in
from mlplatform.gateway.usage.report import By, UsageReader


def routes(usage: UsageReader) -> list[Route]:
    """Return the route `GET /platform/usage`; errors are plain text."""

    async def get(request: Request) -> Response:
        """Respond with what each person, team or job has reserved in a time window; whole Unix seconds."""
        asked = request.query_params
        by = _groups(asked.get("by", By.PERSON))
        # In whole seconds, so that a client that continues names the same window.
        now = int(datetime.now(UTC).timestamp())
        until = min(number_in("until", asked["until"]), now) if "until" in asked else now
        since = min(number_in("since", asked.get("since", "0")), now)
        after = number_in("after", asked.get("after", "0"))
        uses = await usage.read(by, _time(since), _time(until), after, USAGE_ENTRIES)
        more = by is By.JOB and len(uses) == USAGE_ENTRIES
        answer = {"since": since, "until": until, "entries": [dict(use._mapping) for use in uses]}
        return JSONResponse({**answer, "next": uses[-1].sequence if more else None})

    return [Route("/platform/usage", get, methods=["GET"])]


def _groups(name: str) -> By:
    try:
        return By(name)
    except ValueError:
        raise RequestError(f"Invalid groups {name[:100]!r}: pass `by=person`, `by=team` or `by=job`.") from None


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
