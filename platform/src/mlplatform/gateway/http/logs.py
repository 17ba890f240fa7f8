"""Routes for the log shipper: upload bytes of a log file, report a completed pass, wait for a request for one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from mlplatform.api.logs import Again, Expected, FileName, Pass, Position, Requested
from mlplatform.gateway.http import request_body
from mlplatform.gateway.http.access import OF_LOG_SHIPPER
from mlplatform.gateway.http.description import errors, raw_body
from mlplatform.gateway.http.routing import JsonBody, router
from mlplatform.gateway.logs.store import JobLogs

INSTANCE = "X-Gateway-Instance"
"""Header of every response of the gateway; its value changes when the gateway restarts."""

BODY_BYTES = 1 << 20

_HOLD_SECONDS = 2.0
"""Maximum time that a request is held; it delays the end of the gateway by as much."""

_SMALLER = "send it in several requests"

_PASS = JsonBody(Pass, BODY_BYTES, _SMALLER)

_SHIPPER = [Depends(OF_LOG_SHIPPER)]


def of_logs(logs: JobLogs) -> APIRouter:
    """Return the routes below `/platform/logs`."""
    routes = router()

    @routes.put(
        "/platform/logs/{node}/{file}",
        dependencies=_SHIPPER,
        responses={**errors(404, 410), 409: {"model": Expected, "description": "The body begins at another offset."}},
        openapi_extra=raw_body("At most 1 MiB; an empty body queries the offset.", required=False),
    )
    async def put(
        request: Request, response: Response, node: FileName, file: FileName, position: Annotated[Position, Query()]
    ) -> Expected:
        """Bytes of a log file, from a log shipper."""
        body = await request_body.whole(request.receive, BODY_BYTES, _SMALLER)
        begin, restart, more = position.offset, position.restart, position.more == "1"
        found = await logs.accept(node, position.session, file, begin, position.inode, body, restart=restart, more=more)
        # Nothing is accepted of a body at another offset; an empty body is a query.
        if body and not found.at_offset:
            response.status_code = 409
        return Expected(expected=found.expected)

    @routes.post("/platform/logs/{node}", dependencies=_SHIPPER)
    async def post(node: FileName, passed: Annotated[Pass, Depends(_PASS)]) -> Again:
        """A log shipper's report that it sent everything up to a moment."""
        # Bytes that an earlier instance accepted may have been lost with it.
        return Again(again=passed.instance != logs.instance or await logs.passed(node, passed.pass_started))

    @routes.get("/platform/logs", dependencies=_SHIPPER, include_in_schema=False)
    async def get(node: Annotated[list[str], Query()] = []) -> Requested:  # noqa: B006 - FastAPI copies it
        """Tell, within 2 s, that someone waits for a pass of one of the nodes."""
        return Requested(requested=await logs.pass_requested(node, _HOLD_SECONDS))

    return routes
