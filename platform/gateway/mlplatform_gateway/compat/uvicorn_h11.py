"""A bound on the time in which a client must send a request's headers; seen in uvicorn 0.54.0.

uvicorn closes idle connections after a response only: 300 half-sent requests were all open after 75 s, and those whose
body trickled in after the response never ended. It has no setting for it, but accepts a subclass of its protocol.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class BoundedHeaders(H11Protocol):
    """HTTP protocol that closes a connection whose next request's headers are incomplete for `HEADER_SECONDS`.

    The time also runs for the rest of a body that the response did not wait for.
    """

    HEADER_SECONDS = 30.0

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._await_headers(True)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, and wait for the rest of the headers if they are incomplete."""
        super().data_received(data)
        state = self.conn.their_state
        answered_early = state is h11.SEND_BODY and bool(self.cycle) and self.cycle.response_complete
        self._await_headers(state is h11.IDLE or answered_early)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._await_headers(False)
        super().connection_lost(exc)

    def _await_headers(self, incomplete: bool) -> None:
        """Start the time while headers are incomplete, unless it runs: single bytes do not extend it."""
        if incomplete and self._deadline is None:
            self._deadline = self.loop.call_later(self.HEADER_SECONDS, self.transport.close)
        elif not incomplete and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
