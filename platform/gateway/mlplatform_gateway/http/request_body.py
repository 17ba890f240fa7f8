"""Request bodies with a size limit and an idle timeout."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

import anyio
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.types import Receive

from mlplatform_gateway.errors import BodyTooLargeError, ClientGoneError, RequestError, StalledRequestError
from mlplatform_gateway.jobs.submission import invalid_field

_Model = TypeVar("_Model", bound=BaseModel)

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


class JsonBody(Generic[_Model]):
    """Dependency that returns the body of a request as a model.

    FastAPI itself would read any amount for any time, and only with a header that clients do not all send.

    Args:
        model: fields of the body.
        max_bytes: size limit.
        instead: what to do instead of sending more.
        empty: what an empty body stands for; None if it is an error.
        parse: reader of the body, if it is not the model's own.
    """

    def __init__(
        self,
        model: type[_Model],
        max_bytes: int = 16 << 10,
        instead: str = "send the fields of the description alone",
        empty: bytes | None = None,
        parse: Callable[[bytes], _Model] | None = None,
    ) -> None:
        self.model, self.empty = model, empty
        self._max_bytes, self._instead = max_bytes, instead
        self._parse = parse or model.model_validate_json

    async def __call__(self, request: Request) -> _Model:
        """Return the body.

        Raises:
            RequestError: it is invalid, exceeds the limit or did not arrive.
        """
        body = await whole(request.receive, self._max_bytes, self._instead)
        try:
            return self._parse(body or self.empty or b"")
        except ValidationError as error:
            raise RequestError(invalid_field(error)) from error
