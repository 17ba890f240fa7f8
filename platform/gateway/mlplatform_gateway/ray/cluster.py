"""Ray's latest listing of its jobs and nodes, shared by all that need one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from mlplatform.capacity.resources import Node
from mlplatform.errors import UnreachableError
from mlplatform_gateway.ray.head import ClusterSnapshot, RayHead

_FRESH_SECONDS = 2.0
"""Maximum age of the listing when a person waits for the answer."""

_LONGEST_LISTING_SECONDS = 60.0
"""Longer than the timeouts of the requests to Ray."""

_REMEMBERED_SECONDS = 600.0
"""Time for which new jobs are compared with the nodes that Ray has listed last, while it lists none."""

LISTING_SECONDS = 3.0
"""Time for which pages and lists wait for Ray: a head that hangs does not hold up the rest of them."""


class Cluster:
    """Ray's latest listing."""

    def __init__(self, head: RayHead) -> None:
        self._head = head
        self._last: ClusterSnapshot | None = None
        self._read = float("-inf")

    async def refresh(self) -> ClusterSnapshot:
        """Return a new listing; raises UnreachableError while Ray's head is unavailable."""
        self._last, self._read = await self._head.look(), time.monotonic()
        return self._last

    async def look(self, within_s: float = _LONGEST_LISTING_SECONDS) -> ClusterSnapshot:
        """Return the listing, at most two seconds old.

        Raises:
            UnreachableError: Ray's head is unavailable, or has not listed them within that time.
        """
        if self._last and time.monotonic() - self._read <= _FRESH_SECONDS:
            return self._last
        try:
            async with asyncio.timeout(within_s):
                return await self.refresh()
        except TimeoutError as error:
            raise UnreachableError(f"Ray's head has not listed its nodes within {within_s:g} s.") from error

    async def nodes(self) -> Sequence[Node]:
        """Return the nodes; while Ray is down, those of the last listing as lost ones, on which nothing is free."""
        try:
            return (await self.look()).nodes
        except UnreachableError:
            recent = time.monotonic() - self._read < _REMEMBERED_SECONDS
            return [replace(node, alive=False) for node in self._last.nodes] if self._last and recent else []
