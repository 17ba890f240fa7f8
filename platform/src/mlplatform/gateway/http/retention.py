"""Routes that list and remove what nobody needs any more, for `make prune`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mlplatform.errors import PlatformError
from mlplatform.gateway.audit.log import Actor, AuditLog
from mlplatform.gateway.control.retention import Retention
from mlplatform.gateway.http.auth import actor_of

PATH = "/platform/prune"


def routes(retention: Retention, audit: AuditLog) -> list[Route]:
    """Return the routes `GET` and `POST /platform/prune`; what is removed depends on the settings only."""

    async def get(_: Request) -> Response:
        kinds = [
            {
                "kind": title,
                "count": len(found),
                "files": sum(one.files for one in found),
                "bytes": sum(one.bytes for one in found),
            }
            for title, found in await retention.plan()
        ]
        return JSONResponse({"kinds": kinds})

    async def post(request: Request) -> Response:
        """Remove, and send a line of JSON for each removed thing; the last line has the error, if there is one."""
        return StreamingResponse(_removed(retention, audit, actor_of(request.scope)), media_type="application/jsonl")

    return [Route(PATH, get, methods=["GET"]), Route(PATH, post, methods=["POST"])]


async def _removed(retention: Retention, audit: AuditLog, actor: Actor) -> AsyncIterator[str]:
    counts: Counter[str] = Counter()
    try:
        async for title, found in retention.apply():
            counts[title] += 1
            line = {"kind": title, "name": found.name, "files": found.files, "bytes": found.bytes}
            yield f"{json.dumps(line)}\n"
        for title, count in counts.items():
            await audit.add(actor, "prune", title, {"count": count})
    except PlatformError as error:
        yield f"{json.dumps({'error': str(error)})}\n"
