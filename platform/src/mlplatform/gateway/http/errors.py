"""Responses for errors: one table from our exceptions to HTTP statuses."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mlplatform.errors import AccessError, CapacityError, JobError, PlatformError, StorageError, UnreachableError
from mlplatform.gateway.errors import (
    BodyTooLargeError,
    DiskFullError,
    ForbiddenError,
    JobExistsError,
    JobGoneError,
    JobIsOpenError,
    LoginCodeError,
    LogsBusyError,
    NameTakenError,
    NoSuchJobError,
    NoSuchNameError,
    NoSuchPackageError,
    NotResumableError,
    PackageError,
    PackageExistsError,
    PackageTooLargeError,
    PersonError,
    QueueFullError,
    RequestError,
    StalledRequestError,
    TokenError,
    UnknownJobError,
)
from mlplatform.throttle import ThrottledWarning

_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (TokenError, 403),
    (LoginCodeError, 403),
    (ForbiddenError, 403),
    (NoSuchNameError, 404),
    (NoSuchJobError, 404),
    (NoSuchPackageError, 404),
    (UnknownJobError, 404),
    (StalledRequestError, 408),
    (NameTakenError, 409),
    (JobExistsError, 409),
    (JobIsOpenError, 409),
    (NotResumableError, 409),
    (PackageExistsError, 409),
    (JobGoneError, 410),
    (BodyTooLargeError, 413),
    (PackageTooLargeError, 413),
    (CapacityError, 422),
    (QueueFullError, 429),
    (RequestError, 400),
    (PersonError, 400),
    (PackageError, 400),
    (JobError, 400),
    (DiskFullError, 507),
    (LogsBusyError, 503),
    (UnreachableError, 503),
    (AccessError, 503),
    (StorageError, 503),
    (OSError, 503),
)
"""The first match applies, so a subclass is listed before its base."""

_HEADERS = {408: {"Connection": "close"}, 503: {"Retry-After": "5"}}

_warn = ThrottledWarning(logging.getLogger(__name__))


def error_response(error: Exception, headers: Mapping[str, str] | None = None) -> Response:
    """Return the message of an error with its status; re-raise an error that the table lacks.

    Args:
        headers: additional headers of the response.
    """
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), None)
    if status is None:
        raise error
    text = str(error) if isinstance(error, PlatformError) else f"The gateway's storage is unavailable ({error})."
    if status == 503:
        _warn("Answered 503: %s", text)
    return PlainTextResponse(text, status, {**_HEADERS.get(status, {}), **(headers or {})})


async def handle_error(_: Request, error: Exception) -> Response:
    """Exception handler for a Starlette application."""
    return error_response(error)


async def handle_invalid(_: Request, error: RequestValidationError) -> Response:
    """Exception handler for parameters, of which the first invalid one is named."""
    problem = error.errors()[0]
    name, what = problem["loc"][1], problem["msg"].removeprefix("Value error, ")
    value = "" if problem["type"] == "missing" else f" {str(problem['input'])[:100]!r}"
    return error_response(RequestError(f"Invalid {name}{value}: {what}."))


async def handle_missing(_: Request, error: HTTPException) -> Response:
    """Exception handler for what Starlette itself raises, as for a static file that does not exist: its text."""
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
