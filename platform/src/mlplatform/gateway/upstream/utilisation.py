"""Source of the use of nodes, GPUs and running jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mlplatform.errors import UnreachableError
from mlplatform.gateway.upstream.ray import ClusterSnapshot, RayHead
from mlplatform.scheduling.utilisation import Utilisation, utilisation_in

_FRESH_SECONDS = 2.0
"""Ray's dashboard caches its own answers as long."""

_RAY_SECONDS = 3.0
"""Timeout of Ray's answers."""


class UtilisationSource:
    """Source of what the nodes' agents measure, requested from the head once for everyone who looks.

    Ray 2.60 returns the use of processes for one node per request.
    """

    def __init__(self, head: RayHead) -> None:
        self._head = head
        self._last = Utilisation((), (), ())
        self._read = float("-inf")
        self._lock = asyncio.Lock()

    async def of(self, cluster: ClusterSnapshot) -> Utilisation:
        """Return the use of a cluster's nodes, at most two seconds older than Ray's; partly empty without answers."""
        async with self._lock:
            if time.monotonic() - self._read > _FRESH_SECONDS:
                details = await asyncio.gather(*(self._details(node_id) for node_id in cluster.alive))
                self._last = utilisation_in(cluster.nodes, details, cluster.jobs.values())
                self._read = time.monotonic()
            return self._last

    async def _details(self, node_id: str) -> Mapping[str, Any]:
        with suppress(UnreachableError, TimeoutError):
            async with asyncio.timeout(_RAY_SECONDS):
                return await self._head.node_details(node_id)
        return {}
