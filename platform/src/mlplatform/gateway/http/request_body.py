"""Request bodies with a size limit and an idle timeout."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

import anyio
from pydantic import BaseModel, ValidationError
from starlette.types import Receive

from mlplatform.gateway.errors import BodyTooLargeError, ClientGoneError, RequestError, StalledRequestError
from mlplatform.gateway.jobs.submission import invalid_field

_Body = TypeVar("_Body", bound=BaseModel)

SILENT_SECONDS = 30.0
"""Idle timeout of an upload; uvicorn itself would wait indefinitely."""

WHOLE_SECONDS = 60.0
"""Time for a body that fits into memory: single bytes would extend an idle timeout indefinitely."""


async def incoming(receive: Receive, silent_seconds: float = SILENT_SECONDS) -> AsyncIterator[bytes]:
    """Yield the body of a request as it arrives.

    Raises:
        ClientGoneError: the client disconnected.
        StalledRequestError: no bytes arrived for `silent_seconds`.
    """
    more = True
    while more:
        try:
            with anyio.fail_after(silent_seconds):
                message = await receive()
        except TimeoutError as error:
            raise StalledRequestError(
                f"The request stalled for {silent_seconds:g} s before its end; send it again."
            ) from error
        if message["type"] == "http.disconnect":
            raise ClientGoneError("The client disconnected before the end of its request.")
        more = message.get("more_body", False)
        if message.get("body"):
            yield message["body"]


async def whole(receive: Receive, max_bytes: int, instead: str, seconds: float = WHOLE_SECONDS) -> bytes:
    """Return the body of a request that fits into memory.

    Args:
        max_bytes: the size limit.
        instead: what to do instead of sending more; ends the error message.
        seconds: time for all of it.

    Raises:
        BodyTooLargeError, StalledRequestError, ClientGoneError: the body exceeds the limit or did not arrive.
    """
    parts, size = [], 0
    try:
        with anyio.fail_after(seconds):
            async for part in incoming(receive):
                size += len(part)
                if size > max_bytes:
                    raise BodyTooLargeError(f"The body is larger than {max_bytes / (1 << 20):g} MiB; {instead}.")
                parts.append(part)
    except TimeoutError as error:
        raise StalledRequestError(f"The request did not end within {seconds:g} s; send it again.") from error
    return b"".join(parts)


async def parsed(
    receive: Receive,
    model: type[_Body],
    max_bytes: int,
    instead: str = "send the fields of the description alone",
    empty: bytes = b"",
) -> _Body:
    """Return the body of a request as a model.

    Args:
        empty: what an empty body stands for; others as of `whole`.

    Raises:
        RequestError: the body is invalid, exceeds the limit or did not arrive.
    """
    body = await whole(receive, max_bytes, instead)
    try:
        return model.model_validate_json(body or empty)
    except ValidationError as error:
        raise RequestError(invalid_field(error)) from error
