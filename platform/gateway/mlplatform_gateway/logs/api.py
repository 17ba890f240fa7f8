"""Routes for the log shipper: upload bytes of a log file, report a completed pass, wait for a request for one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from mlplatform_gateway.http import request_body
from mlplatform_gateway.http.access import OF_LOG_SHIPPER
from mlplatform_gateway.http.description import errors, raw_body
from mlplatform_gateway.http.errors import error_response
from mlplatform_gateway.logs.models import Again, Expected, FileName, Pass, Position, Requested
from mlplatform_gateway.logs.store import JobLogs

INSTANCE = "X-Gateway-Instance"
"""Header of every response of the gateway; its value changes when the gateway restarts."""

BODY_BYTES = 1 << 20

_HOLD_SECONDS = 2.0
"""Maximum time that a request is held; it delays the end of the gateway by as much."""

_SMALLER = "send it in several requests"

_PASS = Depends(request_body.JsonBody(Pass, BODY_BYTES, _SMALLER))

_OTHER_OFFSET: dict[int | str, dict[str, Any]] = {
    409: {"model": Expected, "description": "The body begins at another offset."}
}


def routes(logs: JobLogs) -> APIRouter:
    """Return the routes below `/platform/logs`."""
    router = APIRouter(dependencies=[OF_LOG_SHIPPER])

    @router.get("/platform/logs", include_in_schema=False)
    async def get(node: Annotated[list[str], Query(default_factory=list)]) -> Requested:
        """Tell, within 2 s, whether someone waits for a pass of one of the nodes."""
        return Requested(requested=await logs.passes.wait_for_request(node, _HOLD_SECONDS))

    @router.put(
        "/platform/logs/{node}/{file}",
        response_model=Expected,
        responses={**errors(404, 410), **_OTHER_OFFSET},
        openapi_extra=raw_body("At most 1 MiB; an empty body queries the offset.", required=False),
    )
    async def put(
        request: Request, response: Response, node: FileName, file: FileName, at: Annotated[Position, Query()]
    ) -> Expected | Response:
        """Bytes of a log file, from a log shipper."""
        body = await request_body.whole(request.receive, BODY_BYTES, _SMALLER)
        where = (node, at.session, file, at.offset, at.inode)
        try:
            found = await logs.accept(*where, body, restart=at.restart, more=at.more == "1")
        except OSError as error:
            return error_response(error)
        # Nothing is accepted of a body at another offset; an empty body is a query.
        if body and not found.at_offset:
            response.status_code = 409
        return Expected(expected=found.expected)

    @router.post("/platform/logs/{node}")
    async def post(node: FileName, reported: Annotated[Pass, _PASS]) -> Again:
        """A log shipper's report that it sent everything up to a moment."""
        # Bytes that an earlier instance accepted may have been lost with it.
        restarted = reported.instance != logs.instance
        return Again(again=restarted or logs.passes.report(node, reported.pass_started))

    return router
