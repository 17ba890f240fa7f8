"""Recent outages of the services that jobs depend on, so that a failure right after one is not blamed on the job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import httpx

from mlplatform.client.certificates import verification

LOOK_BACK_SECONDS = 120.0
"""A training survives a minute without storage; a failure two minutes later has another cause."""

HEAD = "Ray's head"
_PROBE_SECONDS = 2.0

_PRESENT_SECONDS = 6.0
"""Seconds for which an outage counts as current: longer than a check of a server that times out twice."""

_TIMEOUT = httpx.Timeout(1.5)


class Outages:
    """Record of the times when servers did not answer.

    Args:
        addresses: URLs by the names used in messages; any HTTP status except 502, 503 and 504 means available.
    """

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses
        self._unavailable: dict[str, float] = {}
        self._answered: dict[str, float] = {}
        self._http = httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False, verify=verification(*addresses.values()))

    def note(self, name: str) -> None:
        """Record that a service does not answer now."""
        self._unavailable[name] = time.monotonic()

    def recent(self, within_s: float = LOOK_BACK_SECONDS) -> list[str]:
        """Return the services that did not answer at some time within the last `within_s` seconds, at most 120."""
        least = time.monotonic() - min(within_s, LOOK_BACK_SECONDS)
        return [name for name, at in self._unavailable.items() if at >= least]

    def now(self) -> list[str]:
        """Return the services whose last check, within the last 6 s, got no answer."""
        least = time.monotonic() - _PRESENT_SECONDS
        return [name for name, at in self._unavailable.items() if at > max(least, self._answered.get(name, 0.0))]

    async def probe(self) -> None:
        """Check each server once, all at the same time."""
        await asyncio.gather(*(self._check(name, address) for name, address in self._addresses.items()))

    async def watch(self, while_needed: asyncio.Event) -> None:
        """Check every two seconds while there are open jobs; never returns."""
        while True:
            await while_needed.wait()
            await self.probe()
            await asyncio.sleep(_PROBE_SECONDS)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _check(self, name: str, address: str) -> None:
        # Twice: the first answer may be late because this process is busy, for instance in the seconds after its start.
        if await self._answers(address) or await self._answers(address):
            self._answered[name] = time.monotonic()
        else:
            self.note(name)

    async def _answers(self, address: str) -> bool:
        try:
            answer = await self._http.get(address)
        except httpx.TransportError:
            return False
        return answer.status_code not in (502, 503, 504)
