"""Routes that list and remove what nobody needs any more, for `make prune`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from starlette.responses import StreamingResponse

from mlplatform.api.storage import Prunable, Unneeded
from mlplatform.errors import PlatformError
from mlplatform_gateway.audit.store import Actor, AuditLog
from mlplatform_gateway.http.access import ADMINISTRATORS
from mlplatform_gateway.http.auth import actor_of
from mlplatform_gateway.retention.loop import Retention

PATH = "/platform/prune"


class _Lines(StreamingResponse):
    media_type = "application/jsonl"


def routes(retention: Retention, audit: AuditLog) -> APIRouter:
    """Return the routes `GET` and `POST /platform/prune`; what is removed depends on the settings only."""
    router = APIRouter(dependencies=[ADMINISTRATORS])

    @router.get(PATH)
    async def get() -> Prunable:
        """Things that nobody needs any more and `POST` would remove now; the settings decide which these are.

        Packages of old jobs, and what CHECKPOINTS_KEEP_DAYS and RUNS_KEEP_DAYS select.
        """
        kinds = [
            Unneeded(
                kind=title,
                count=len(found),
                files=sum(one.files for one in found),
                bytes=sum(one.bytes for one in found),
            )
            for title, found in await retention.plan()
        ]
        return Prunable(kinds=kinds)

    @router.post(PATH, response_class=_Lines)
    async def post(request: Request) -> StreamingResponse:
        """Remove what `GET` lists, as the gateway does once per hour.

        A line of JSON for each removed thing, with kind, name, files and bytes. If not everything could be removed, the
        last line has a sentence in `error` instead.
        """
        return _Lines(_removed(retention, audit, actor_of(request.scope)))

    return router


async def _removed(retention: Retention, audit: AuditLog, actor: Actor) -> AsyncIterator[str]:
    counts: Counter[str] = Counter()
    try:
        async for title, found in retention.apply():
            counts[title] += 1
            line = {"kind": title, "name": found.name, "files": found.files, "bytes": found.bytes}
            yield f"{json.dumps(line)}\n"
        for title, count in counts.items():
            await audit.add(actor, "prune", title, before={"count": count})
    except PlatformError as error:
        yield f"{json.dumps({'error': str(error)})}\n"
