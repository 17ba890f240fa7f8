"""Responses for errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mlplatform.errors import AccessError, CapacityError, JobError, PlatformError, StorageError, UnreachableError
from mlplatform.text.throttle import ThrottledWarning

_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (CapacityError, 422),
    (JobError, 400),
    (UnreachableError, 503),
    (AccessError, 503),
    (StorageError, 503),
    (OSError, 503),
)
"""Statuses of errors that are not the gateway's own, which name theirs. The first match applies."""

_HEADERS = {408: {"Connection": "close"}, 503: {"Retry-After": "5"}}

_warn = ThrottledWarning(logging.getLogger(__name__))


def error_response(error: Exception) -> Response:
    """Return the message of an error with its status; re-raise an error that has none."""
    others = (status for kind, status in _STATUSES if isinstance(error, kind))
    # Of the class: errors of MLflow have a status of their own, which is not that of this response.
    status: int | None = getattr(type(error), "status", None) or next(others, None)
    if status is None:
        raise error
    text = str(error) if isinstance(error, PlatformError) else f"The gateway's storage is unavailable ({error})."
    if status == 503:
        _warn("Answered 503: %s", text)
    return PlainTextResponse(text, status, _HEADERS.get(status))


async def handle_error(_: Request, error: Exception) -> Response:
    """Exception handler for our errors."""
    return error_response(error)


async def handle_invalid(_: Request, error: RequestValidationError) -> Response:
    """Exception handler for parameters, of which the first invalid one is named."""
    problem = error.errors()[0]
    if problem["type"] == "missing":
        return PlainTextResponse(f"{problem['loc'][1]} is missing: pass it.", 400)
    what, value = problem["msg"].removeprefix("Value error, "), problem["input"]
    shown = repr(value[:100]) if isinstance(value, str) else "''"
    return PlainTextResponse(f"Invalid {problem['loc'][1]} {shown}: {what}.", 400)


async def handle_http(_: Request, error: HTTPException) -> Response:
    """Exception handler for what Starlette itself raises, as for a method that a path does not have: its text."""
    return PlainTextResponse(error.detail, error.status_code, error.headers)


def error_handler(full_disk: Callable[[], Awaitable[str]]) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Return an exception handler that names a full disk, which is why a service is unavailable.

    Args:
        full_disk: returns a sentence about the disk that is full; empty if none is.
    """

    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error, UnreachableError) and (reason := await full_disk()):
            error = UnreachableError(f"{reason} {error}")
        return await handle_error(request, error)

    return handle
