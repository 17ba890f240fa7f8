"""Routes for the log shipper: upload bytes of a log file, report a completed pass, wait for a request for one."""

from __future__ import annotations

import json
import math
import re

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlplatform.errors import PlatformError
from mlplatform.gateway.errors import RequestError
from mlplatform.gateway.http import request_body
from mlplatform.gateway.http.errors import error_response
from mlplatform.gateway.logs.store import JobLogs

INSTANCE = "X-Gateway-Instance"
"""Header of every response; its value changes when the gateway restarts."""

BODY_BYTES = 1 << 20

_HOLD_SECONDS = 2.0
"""Maximum time that a request is held; it delays the end of the gateway by as much."""

_SMALLER = "send it in several requests"

_NAME = re.compile(r"(?!\.+\Z)[\w.:@+-]{1,255}", re.ASCII)
"""The characters of job ids."""

_NUMBER = re.compile(r"\d{1,19}", re.ASCII)


def routes(logs: JobLogs) -> list[Route]:
    """Return the routes `PUT /platform/logs/<node>/<file>`, `POST /platform/logs/<node>` and `GET /platform/logs`.

    Errors are plain text.
    """

    async def put(request: Request) -> Response:
        """Accept bytes of a file: 200 with the next offset, 409 with the offset expected, or 404, 410, 503."""
        try:
            node, file = (name_in(key, request.path_params[key]) for key in ("node", "file"))
            session = name_in("session", request.query_params.get("session", ""))
            offset, inode = (number_in(key, request.query_params.get(key, "")) for key in ("offset", "inode"))
            taken = request.query_params.get("restart")
            restart = None if taken is None else number_in("restart", taken)
            more = request.query_params.get("more", "") == "1"
            body = await request_body.whole(request.receive, BODY_BYTES, _SMALLER)
            found = await logs.accept(node, session, file, offset, inode, body, restart=restart, more=more)
        except (PlatformError, OSError) as error:
            return error_response(error, {INSTANCE: logs.instance})
        # Nothing is accepted of a body at another offset; an empty body is a query.
        status = 409 if body and not found.at_offset else 200
        return JSONResponse({"expected": found.expected}, status, {INSTANCE: logs.instance})

    async def post(request: Request) -> Response:
        """Accept a shipper's report that it sent everything; respond whether it should check again at once."""
        try:
            node = name_in("node", request.path_params["node"])
            started, instance = _report(await request_body.whole(request.receive, BODY_BYTES, _SMALLER))
        except PlatformError as error:
            return error_response(error, {INSTANCE: logs.instance})
        # Bytes that an earlier instance accepted may have been lost with it.
        again = instance != logs.instance or logs.passes.report(node, started)
        return JSONResponse({"again": again}, headers={INSTANCE: logs.instance})

    async def get(request: Request) -> Response:
        """Respond, within 2 s, whether someone waits for a pass of one of the nodes `?node=…`."""
        requested = await logs.passes.wait_for_request(request.query_params.getlist("node"), _HOLD_SECONDS)
        return JSONResponse({"requested": requested}, headers={INSTANCE: logs.instance})

    return [
        Route("/platform/logs", get, methods=["GET"]),
        Route("/platform/logs/{node}/{file}", put, methods=["PUT"]),
        Route("/platform/logs/{node}", post, methods=["POST"]),
    ]


def name_in(what: str, value: str) -> str:
    """Return a name from a request.

    Raises:
        RequestError: it has other characters than ids of jobs have.
    """
    if not _NAME.fullmatch(value):
        raise RequestError(
            f"Invalid {what} {value[:100]!r}: use at most 255 letters, digits, '_', '.', ':', '@', '+' and '-'."
        )
    return value


def number_in(what: str, value: str) -> int:
    """Return a number from a request.

    Raises:
        RequestError: it is none, or does not fit into 64 bits.
    """
    if not _NUMBER.fullmatch(value) or int(value) >= 1 << 63:
        raise RequestError(f"Invalid {what} {value[:100]!r}: pass a whole number from 0 to 2^63-1.")
    return int(value)


def _report(body: bytes) -> tuple[float, str | None]:
    try:
        value = json.loads(body)
        started, instance = float(value["pass_started"]), value.get("instance")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise RequestError('Invalid body: send {"pass_started": <Unix seconds>, "instance": <text>}.') from error
    if not math.isfinite(started):
        raise RequestError(f"Invalid pass_started {started}: send Unix seconds.")
    return started, instance
