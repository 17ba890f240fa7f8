"""The two requests by which carriers bring logs; who may send them is checked before."""

from __future__ import annotations

import json
import math
import re

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from mlplatform.errors import PlatformError
from mlplatform.gateway.http import request_body
from mlplatform.gateway.logs.store import JobGoneError, JobLogs, UnknownJobError

INSTANCE = "X-Gateway-Instance"
"""Header of each answer; it changes when the gateway has started anew."""

BODY_BYTES = 1 << 20

_SMALLER = "send it in several requests"

_NAME = re.compile(r"(?!\.+\Z)[\w.:@+-]{1,255}", re.ASCII)
"""Characters that ids of jobs may have."""

_NUMBER = re.compile(r"\d{1,19}", re.ASCII)


def routes(logs: JobLogs) -> list[Route]:
    """`PUT /platform/logs/<node>/<file>` and `POST /platform/logs/<node>`; errors are one sentence of plain text."""

    async def put(request: Request) -> Response:
        """Take bytes of a file: 200 and where to go on, 409 and where it should have begun, 404, 410, 503."""
        try:
            node, file = (_name(key, request.path_params[key]) for key in ("node", "file"))
            session = _name("session", request.query_params.get("session", ""))
            offset, inode = (_number(key, request.query_params.get(key, "")) for key in ("offset", "inode"))
            taken = request.query_params.get("restart")
            restart = None if taken is None else _number("restart", taken)
            more = request.query_params.get("more", "") == "1"
            body = await request_body.whole(request.receive, BODY_BYTES, _SMALLER)
            expected = await logs.accept(node, session, file, offset, inode, body, restart=restart, more=more)
        except (PlatformError, HTTPException, OSError) as error:
            return _refusal(logs, error)
        # Nothing was taken of a request that began elsewhere; an empty one only asks.
        status = 409 if body and not offset <= expected <= offset + len(body) else 200
        return JSONResponse({"expected": expected}, status, {INSTANCE: logs.instance})

    async def post(request: Request) -> Response:
        """Take a carrier's word that all was sent; answers whether it should look again at once."""
        try:
            node = _name("node", request.path_params["node"])
            started, instance = _pass(await request_body.whole(request.receive, BODY_BYTES, _SMALLER))
        except HTTPException as error:
            return _refusal(logs, error)
        # What was sent to the gateway before this one may be lost with it.
        again = instance != logs.instance or await logs.passed(node, started)
        return JSONResponse({"again": again}, headers={INSTANCE: logs.instance})

    return [
        Route("/platform/logs/{node}/{file}", put, methods=["PUT"]),
        Route("/platform/logs/{node}", post, methods=["POST"]),
    ]


def _refusal(logs: JobLogs, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return PlainTextResponse(
            f"{error.detail}\n", error.status_code, {**(error.headers or {}), INSTANCE: logs.instance}
        )
    # All that is left is a store that is away.
    status = 404 if isinstance(error, UnknownJobError) else 410 if isinstance(error, JobGoneError) else 503
    return PlainTextResponse(f"{error}\n", status, {INSTANCE: logs.instance})


def _name(what: str, value: str) -> str:
    if not _NAME.fullmatch(value):
        raise HTTPException(
            400,
            f"The {what} {value[:100]!r} is not made of letters, digits and _.:@+-, 255 at most; correct it.",
        )
    return value


def _number(what: str, value: str) -> int:
    if not _NUMBER.fullmatch(value) or int(value) >= 1 << 63:
        raise HTTPException(400, f"The {what} {value[:100]!r} is not a whole number from 0 to 2^63-1; correct it.")
    return int(value)


def _pass(body: bytes) -> tuple[float, str | None]:
    try:
        value = json.loads(body)
        started, instance = float(value["pass_started"]), value.get("instance")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise HTTPException(400, 'The body is not {"pass_started": <Unix seconds>, "instance": <text>}.') from error
    if not math.isfinite(started):
        raise HTTPException(400, f"pass_started is {started}, which is no time; send Unix seconds.")
    return started, instance
