"""What a job may stand on and was away lately: an exit that follows is not the job's own fault."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import httpx

LOOK_BACK_SECONDS = 120.0
"""A training rides out a minute without storage; what it prints after two has another cause."""

HEAD = "Ray's head"

_PROBE_SECONDS = 2.0

_PRESENT_SECONDS = 6.0
"""Between two answers of `watch` to a server that lets each of the two questions time out."""

_TIMEOUT = httpx.Timeout(1.5)


class Outages:
    """Asks servers whether they answer, and remembers when they did not."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        """Args: addresses: by the name that people know; any answer of HTTP is one."""
        self._addresses = addresses
        self._away: dict[str, float] = {}
        self._answered: dict[str, float] = {}
        self._http = httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False)

    def note(self, name: str) -> None:
        """Something did not answer now."""
        self._away[name] = time.monotonic()

    def recent(self, within_s: float = LOOK_BACK_SECONDS) -> list[str]:
        """What did not answer at some time within the last seconds, two minutes at most."""
        least = time.monotonic() - min(within_s, LOOK_BACK_SECONDS)
        return [name for name, at in self._away.items() if at >= least]

    def now(self) -> list[str]:
        """What did not answer when it was asked last."""
        least = time.monotonic() - _PRESENT_SECONDS
        return [name for name, at in self._away.items() if at > max(least, self._answered.get(name, 0.0))]

    async def probe(self) -> None:
        """Ask each server once, all at the same time."""
        await asyncio.gather(*(self._ask(name, address) for name, address in self._addresses.items()))

    async def watch(self, while_needed: asyncio.Event) -> None:
        """Ask every two seconds while there are jobs that stand on the servers."""
        while True:
            await while_needed.wait()
            await self.probe()
            await asyncio.sleep(_PROBE_SECONDS)

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(self, name: str, address: str) -> None:
        # Twice: the first answer may be late by our own doing, in the busy seconds after a start for instance.
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
