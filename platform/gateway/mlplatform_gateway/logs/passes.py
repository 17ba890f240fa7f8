"""Completed passes of the log shippers: the time up to which the gateway has each node's logs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress

_SILENT_SECONDS = 10.0


class Passes:
    """The start of each node's last completed pass, in Unix seconds."""

    def __init__(self) -> None:
        self._created = time.time()
        self._started: dict[str, float] = {}
        self._reported = asyncio.Event()
        self._awaited: list[tuple[str, float]] = []
        self._asked = asyncio.Event()

    def report(self, node: str, started: float) -> bool:
        """Record that a shipper sent everything that the node's files of known jobs had at `started`.

        Returns:
            True if someone waits for a later moment: the shipper should look again at once, at unknown files, too.
        """
        self._started[node] = max(started, self._started.get(node, started))
        self._reported.set()
        self._reported = asyncio.Event()
        return any(name == node and since > started for name, since in self._awaited)

    async def wait_for_request(self, nodes: Collection[str], timeout_s: float) -> bool:
        """Wait until someone waits for a later pass of one of the nodes; False on timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._is_requested(nodes):
                    await self._asked.wait()
        return self._is_requested(nodes)

    def _is_requested(self, nodes: Collection[str]) -> bool:
        return any(name in nodes and since > self._started.get(name, 0.0) for name, since in self._awaited)

    def is_live(self, node: str) -> bool:
        """Return whether a pass of the node began within the last 10 s; a new instance gives every node 10 s."""
        return self._started.get(node, self._created) > time.time() - _SILENT_SECONDS

    async def wait(self, nodes: set[str], since: float, timeout_s: float) -> bool:
        """Wait until each of the nodes has completed a pass that began at `since` or later; False on timeout."""
        awaited = [(name, since) for name in nodes]
        self._awaited += awaited
        self._asked.set()
        self._asked = asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                while not all(self._started.get(name, 0.0) >= since for name in nodes):
                    await self._reported.wait()
            return True
        except TimeoutError:
            return False
        finally:
            for item in awaited:
                self._awaited.remove(item)
