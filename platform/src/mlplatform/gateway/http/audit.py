"""Route that returns the audit log."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.contract import AUDIT_ENTRIES
from mlplatform.gateway.audit.log import AuditLog
from mlplatform.gateway.audit.schema import AuditRow
from mlplatform.gateway.errors import RequestError
from mlplatform.gateway.http.logs import number_in

_LIMIT = 100

_LAST_SECOND = 253402300799
"""The end of the year 9999, which is the last that Python and the databases can represent."""


def routes(audit: AuditLog) -> list[Route]:
    """Return the route `GET /platform/audit`; errors are plain text."""

    async def get(request: Request) -> Response:
        """Respond with the latest entries, the oldest of them first."""
        limit = _number(request, "limit")
        if limit is not None and not 1 <= limit <= AUDIT_ENTRIES:
            raise RequestError(
                f"Invalid limit {limit}: pass a number from 1 to {AUDIT_ENTRIES}; `before` leads further back."
            )
        since = _number(request, "since")
        moment = None if since is None else datetime.fromtimestamp(min(since, _LAST_SECOND), UTC)
        rows = await audit.read(limit or _LIMIT, moment, _number(request, "before"))
        return JSONResponse({"entries": [_entry(row) for row in rows]})

    return [Route("/platform/audit", get, methods=["GET"])]


def _number(request: Request, name: str) -> int | None:
    value = request.query_params.get(name)
    return None if value is None else number_in(name, value)


def _entry(row: AuditRow) -> dict[str, Any]:
    return {
        "sequence": row.sequence,
        "time": row.time.isoformat(),
        "principal": row.principal,
        "kind": row.kind,
        "address": row.address,
        "verb": row.verb,
        "object": row.object,
        "before": row.before and json.loads(row.before),
        "after": row.after and json.loads(row.after),
    }
