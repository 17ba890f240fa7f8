"""Reasons for the log shipper to make a pass: files that have changed, and a job's end that waits for its log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import httpx
from watchfiles import awatch

from mlplatform.errors import SettingsError

HEARTBEAT_SECONDS = 1.0
"""Interval of passes without changes."""

_GROUP_MS, _QUIET_MS = 200, 20
"""Changes within these intervals share a pass: 5 passes per second while a file grows steadily."""

_RETRY_SECONDS = 1.0


async def changes(folders: set[Path]) -> AsyncGenerator[list[str], None]:
    """Yield the paths that changed; an empty list after a second without changes."""
    watch = awatch(
        *folders,
        watch_filter=None,
        debounce=_GROUP_MS,
        step=_QUIET_MS,
        rust_timeout=int(HEARTBEAT_SECONDS * 1000),
        yield_on_timeout=True,
        force_polling=False,
        recursive=False,
        ignore_permission_denied=True,
    )
    async with contextlib.aclosing(watch) as batches:
        async for batch in batches:
            yield [path for _, path in batch]


async def requested(client: httpx.AsyncClient, nodes: Sequence[str]) -> bool:
    """Wait until the gateway wants a pass of one of the nodes; return False after 1 or 2 s without a request."""
    try:
        answer = await client.get("/platform/logs", params={"node": list(nodes)})
        if answer.status_code == 200:
            return bool(answer.json()["requested"])
    except (SettingsError, httpx.HTTPError):
        pass  # The next pass reports it.
    await asyncio.sleep(_RETRY_SECONDS)
    return False
