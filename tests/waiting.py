"""The one way in which unit and embedded tests wait."""

from __future__ import annotations

import time
from collections.abc import Callable
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
