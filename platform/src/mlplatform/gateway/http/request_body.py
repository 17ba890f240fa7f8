"""How the body of a request is read: no longer than something comes, and no more of it than is allowed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
from starlette.exceptions import HTTPException
from starlette.types import Receive

SILENT_SECONDS = 30.0
"""How long an upload may stand still: uvicorn itself would wait for ever."""


class ClientGoneError(Exception):
    """The client has left before its request was whole."""


async def incoming(receive: Receive, silent_seconds: float = SILENT_SECONDS) -> AsyncIterator[bytes]:
    """The body of a request, as it comes.

    Raises:
        ClientGoneError: the client has left.
        TimeoutError: not a byte came for `silent_seconds`.
    """
    more = True
    while more:
        with anyio.fail_after(silent_seconds):
            message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        more = message.get("more_body", False)
        if message.get("body"):
            yield message["body"]


async def whole(receive: Receive, most_bytes: int, instead: str) -> bytes:
    """The body of a request that fits into memory; `instead` says what to do with more than `most_bytes`.

    Raises:
        HTTPException: 413 for a larger one, 408 for one that stood still, 400 where the client has left.
    """
    parts, size = [], 0
    try:
        async for part in incoming(receive):
            size += len(part)
            if size > most_bytes:
                raise HTTPException(413, f"The body is larger than {most_bytes / (1 << 20):g} MiB; {instead}.")
            parts.append(part)
    except ClientGoneError as error:
        raise HTTPException(400, "The client left before the body was whole.") from error  # to nobody
    except TimeoutError as error:
        text = f"The request stood still for {SILENT_SECONDS:g} s before its end; send it again."
        raise HTTPException(408, text, {"Connection": "close"}) from error
    return b"".join(parts)
