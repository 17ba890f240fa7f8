"""The one way in which unit and embedded tests wait, and the one for tests that are coroutines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")


def wait_for(condition: Callable[[], Result | None], what: str, seconds: float = 120) -> Result:
    """Poll a condition every 50 ms and return its first true value.

    Raises:
        AssertionError: the condition was not true within `seconds`; names `what`.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"timed out after {seconds:.0f} s waiting for {what}"
        time.sleep(0.05)
    return found


async def until(condition: Callable[[], object | Awaitable[object]], seconds: float = 60) -> None:
    """Poll a plain function or a coroutine function every 20 ms until its result is true.

    Raises:
        TimeoutError: it was not within `seconds`.
    """
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.02)
