"""Sender of the nodes' logs of process starts to the gateway, a part of the log shipper."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx

from mlplatform.contract import START_LOG
from mlplatform.errors import PlatformError, UnreachableError
from mlplatform.files.beneath import open_beneath
from mlplatform.throttle import ThrottledWarning

_PASS_SECONDS = 1.0

_REQUEST_BYTES = 64 << 10

_NEWEST_LOGS = 1000
"""Logs per node that are looked at: each start of Ray makes one, and a job any number."""

_log = logging.getLogger(__name__)


@dataclass
class _Sent:
    """State of a log that saves requests."""

    offset: int | None = None
    """The offset at which the gateway continues; None before the first query."""

    size: int = 0
    """The log's size when there was nothing to send."""


class StartShipper:
    """Sender of the lines that the gateway lacks of the files `<root>/<node>/starts-*.jsonl`.

    The gateway records how far it has read each of them; the state in this process only saves requests.

    Args:
        root: has one folder per node, which is that node's /tmp/ray.
        client: its base URL is the gateway's; it authenticates its requests.
    """

    def __init__(self, root: Path, client: httpx.AsyncClient) -> None:
        self._root = root
        self._client = client
        self._sent: dict[Path, _Sent] = {}
        self._warn = ThrottledWarning(_log)

    async def run(self) -> None:
        """Send what the nodes append, once per second; never returns."""
        while True:
            try:
                await self._pass()
            except (httpx.HTTPError, PlatformError, OSError) as error:
                self._warn(
                    "The gateway does not accept starts of processes, they stay on their nodes: %s",
                    str(error) or repr(error),
                )
            await asyncio.sleep(_PASS_SECONDS)

    async def _pass(self) -> None:
        logs = list(self._logs())
        self._sent = {path: self._sent.get(path) or _Sent() for path in logs}
        for path in logs:
            with suppress(FileNotFoundError, NotADirectoryError):  # its node has just started again
                await self._send(path, self._sent[path])

    async def _send(self, path: Path, sent: _Sent) -> None:
        """Send a log up to its present size, if it has grown."""
        size = path.stat(follow_symlinks=False).st_size
        while sent.size != size:
            expected = await self._put(path, sent.offset, size)
            # Nothing is accepted of the last line before it is complete.
            if expected is None or expected >= size or expected == sent.offset:
                sent.size = size
            sent.offset = expected

    async def _put(self, path: Path, offset: int | None, size: int) -> int | None:
        """Send the next part of a log, or query the offset.

        Returns:
            The offset at which the gateway continues; None if it rejects the log.

        Raises:
            UnreachableError: the gateway does not accept anything now.
        """
        body = b""
        if offset is not None:
            with open_beneath(path.parent, path) as file:
                file.seek(offset)
                body = file.read(max(0, min(_REQUEST_BYTES, size - offset)))
        url = f"/platform/starts/{quote(path.parent.name)}/{quote(path.name)}"
        answer = await self._client.put(url, params={"offset": offset or 0}, content=body)
        text = f"{answer.status_code} {answer.text[:200].strip()}"
        if answer.status_code in (400, 413):
            _log.warning("The gateway rejected %s, it is not sent until it changes: %s", path, text)
            return None
        if answer.status_code not in (200, 409):
            raise UnreachableError(text)
        return int(answer.json()["expected"])

    def _logs(self) -> Iterator[Path]:
        for node in self._root.iterdir():
            if node.is_dir():
                found = (path for path in node.glob("starts-*.jsonl") if START_LOG.fullmatch(path.name))
                yield from heapq.nlargest(_NEWEST_LOGS, found, key=_changed)


def _changed(path: Path) -> float:
    with suppress(FileNotFoundError, NotADirectoryError):
        return path.stat(follow_symlinks=False).st_mtime
    return 0.0
