"""Brings the logs of a host's nodes to the gateway: `python -m mlplatform.gateway.logs.shipper`, one on each host.

It keeps nothing: the files on the nodes are the buffer, the gateway knows how much it has of each. What it knows itself
is only there to ask less often.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import stat
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx
from watchfiles import awatch

from mlplatform.gateway.logs.lines import NO_JOB, LogName, log_name
from mlplatform.settings.gateway import GatewaySettings

HEARTBEAT_SECONDS = 0.5
"""The longest that the end of a job waits for the word that all of its log was sent."""

_REQUEST_BYTES = 256 << 10

_TURN_REQUESTS = 16
"""For one file before the others have their turn: 4 MiB."""

_NAMING_BYTES = 4 << 10
"""Ray writes which job a worker is for into its first line."""

_RECENT_SECONDS = 24 * 3600.0

_UNKNOWN_SECONDS = 2.0

_GIVE_UP_SECONDS = 600.0

_AWAY_SECONDS = 1.0

_AGAIN_SECONDS = 0.05

_REFUSALS = 3
"""One job may have too much that waits for the store, and the others not; several: it is of no use to ask for all."""

_AWAY = "The gateway does not take the logs, they wait on their nodes: %s"

_WARN_SECONDS = 30.0

_TIMEOUT_SECONDS = 20.0

_GROUP_MS, _QUIET_MS = 200, 20
"""Changes that come this close together are one pass: 5 passes a second while a file grows steadily."""

_Key = tuple[str, str, str, int]
"""Node, session, name and inode."""

_log = logging.getLogger(__name__)


class _AwayError(Exception):
    """The gateway does not take anything now."""


@dataclass
class _File:
    """A log file on a node, as the last listing found it and as far as it was sent."""

    node: str
    session: str
    name: LogName
    inode: int
    path: Path = Path()
    size: int = 0
    modified: float = 0.0
    offset: int | None = None
    """Where the gateway wants to go on; None: not asked yet."""

    sent: int = 0
    """The gateway has seen the file up to here; from `offset` on it is the beginning of a line."""

    asked: float = 0.0
    """When the gateway last did not know the job, Unix seconds; 0 if it does."""

    taken: int | None = None
    """How much the gateway has of what the file was before it was written anew."""

    refused: tuple[int, float] | None = None
    """Size and time of a file that is not sent until they change."""

    gone: bool = False

    @property
    def url(self) -> str:
        return f"/platform/logs/{quote(self.node)}/{quote(self.name.file)}"

    @property
    def idle(self) -> bool:
        """Nothing is to be sent or asked."""
        refused = self.refused == (self.size, self.modified)
        return self.gone or refused or (self.offset is not None and self.sent == self.size)

    def forget(self) -> None:
        """Ask anew, for the gateway may have lost what it had taken."""
        self.offset, self.sent, self.asked, self.taken, self.refused = None, 0, 0.0, None, None


class Carrier:
    """Sends what the files below `<root>/<node>/session_*/logs` have more than the gateway."""

    def __init__(self, root: Path, client: httpx.AsyncClient, token_file: Path | None = None) -> None:
        """
        Args:
            root: has one folder a node, which is that node's /tmp/ray.
            client: its base URL is the gateway's.
            token_file: file with Ray's token, read anew with each request; None for a gateway without.
        """
        self._root = root
        self._client = client
        self._token_file = token_file
        self._files: dict[_Key, _File] = {}
        self._instance: str | None = None
        self._warned = float("-inf")

    async def run(self) -> None:
        """Send whenever something has changed, and look at least twice a second; never returns."""
        while True:
            folders = self._folders()
            last = await self._send_all()
            try:
                async with contextlib.aclosing(_changes(folders)) as changes:
                    async for paths in changes:
                        late = time.monotonic() - last >= HEARTBEAT_SECONDS
                        if late or any(log_name(path.rpartition("/")[2]) for path in paths):
                            last = await self._send_all()
                        if self._folders() != folders:
                            break
            except (OSError, RuntimeError) as error:
                # A folder has just vanished, or the host's limit of watches is used up: then only the clock is left.
                self._warn("Changes of the logs are not seen at once (%s).", error)
                await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _send_all(self) -> float:
        """Make passes until there is nothing to send; returns when that was, on the monotonic clock."""
        while True:
            try:
                if not await self._pass():
                    return time.monotonic()
            except (_AwayError, httpx.HTTPError, OSError) as error:
                self._warn(_AWAY, error)
                await asyncio.sleep(_AWAY_SECONDS)

    async def _pass(self) -> bool:
        """Send what the files have; returns whether there is more to do at once."""
        instance, started = self._instance, time.time()
        nodes = self._list()
        behind, refusals = set(), []
        # Drivers first: the gateway takes a worker's lines only once it knows the driver's session.
        files = [file for file in self._files.values() if not file.idle]
        for file in sorted(files, key=lambda file: (file.name.file, file.session, -file.name.age)):
            try:
                if await self._send(file):
                    continue
            except _AwayError as error:
                refusals.append(error)
                if len(refusals) == _REFUSALS:
                    raise
            behind.add(file.node)
        if self._instance != instance:
            return True
        if refusals:
            self._warn(_AWAY, refusals[0])
            await asyncio.sleep(_AWAY_SECONDS)
        again = [node for node in sorted(nodes - behind) if await self._report(node, started)]
        if again:
            await asyncio.sleep(_AGAIN_SECONDS)
        return bool(again or behind)

    async def _report(self, node: str, started: float) -> bool:
        """Say that all was sent that a node's files had then; returns whether the gateway wants another look."""
        files = [file for file in self._files.values() if file.node == node]
        # A file of an unknown job counts from when it was last asked for: the job may have become known since.
        since = min([started, *(file.asked for file in files if file.asked and not file.idle)])
        instance = self._instance
        answer = await self._request(
            "POST", f"/platform/logs/{quote(node)}", json={"pass_started": since, "instance": instance}
        )
        if answer.status_code != 200:
            raise _AwayError(_said(answer))
        if not answer.json()["again"]:
            return False
        for file in files:
            file.asked = 0.0
        return True

    async def _send(self, file: _File) -> bool:
        """Send what a file has, up to the size it was listed with; False if another pass has to go on with it."""
        if time.time() - file.asked < _UNKNOWN_SECONDS:
            return True
        try:
            with file.path.open("rb") as content:
                if os.fstat(content.fileno()).st_ino != file.inode:
                    return False  # rotated since it was listed; the next listing finds both
                for _ in range(_TURN_REQUESTS):
                    if file.idle or not await self._send_part(file, content):
                        return True
                return file.idle
        except PermissionError as error:
            _log.warning("%s is not sent until it changes: %s", file.path, error)
            file.refused = (file.size, file.modified)
            return True
        except (FileNotFoundError, NotADirectoryError):
            return False  # removed, or moved to `old` by Ray, where the next listing finds it

    async def _send_part(self, file: _File, content: BinaryIO) -> bool:
        """Ask where to begin, or send what comes next; False if the gateway does not want the file, or not now."""
        asks = file.offset is None
        begin = file.offset or 0
        length = (_NAMING_BYTES if file.name.ray_job == NO_JOB else 0) if asks else _REQUEST_BYTES
        content.seek(begin)
        body = content.read(min(length, file.size - begin))
        query: dict[str, str | int] = {"session": file.session, "offset": begin, "inode": file.inode}
        if file.taken is not None:
            query["restart"] = file.taken
        if begin + len(body) < file.size:
            query["more"] = 1
        now = time.time()
        answer = await self._request("PUT", file.url, params=query, content=body)
        file.taken = None
        if answer.status_code not in (200, 409):
            self._not_taken(file, answer, now)
            return False
        file.asked = 0.0
        expected = int(answer.json()["expected"])
        if expected > file.size:
            # Written anew under its inode: say so, for the gateway alone cannot tell.
            file.offset, file.sent, file.taken = None, 0, expected
        elif asks or answer.status_code == 409:
            file.offset = file.sent = expected
        else:
            file.offset, file.sent = expected, max(begin + len(body), expected)
        return True

    def _not_taken(self, file: _File, answer: httpx.Response, now: float) -> None:
        status = answer.status_code
        if status == 410:
            file.gone = True
        elif status == 404:
            file.forget()
            if now - file.modified > _GIVE_UP_SECONDS:
                file.refused = (file.size, file.modified)
            else:
                file.asked = now
        elif status in (400, 413):
            _log.warning("%s is not sent any more until it changes; the gateway: %s", file.path, _said(answer))
            file.refused = (file.size, file.modified)
        else:
            raise _AwayError(_said(answer))

    async def _request(self, method: str, url: str, **options: Any) -> httpx.Response:
        headers = {}
        if self._token_file:
            headers["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
        answer = await self._client.request(method, url, headers=headers, **options)
        instance = answer.headers.get("X-Gateway-Instance")
        if instance and instance != self._instance:
            self._instance = instance
            for file in self._files.values():
                file.forget()
        return answer

    def _list(self) -> set[str]:
        """Look at all files; returns the names of the nodes."""
        known, self._files = self._files, {}
        for node, session, folder in self._log_folders():
            # Ray moves files of workers that are gone to `old`; one that is moved meanwhile is seen twice, not never.
            for place in (folder, folder / "old"):
                for entry in _entries(place):
                    self._look_at(entry, node, session, known)
        return {entry.name for entry in _entries(self._root) if entry.is_dir()}

    def _look_at(self, entry: os.DirEntry[str], node: str, session: str, known: dict[_Key, _File]) -> None:
        name = log_name(entry.name)
        if name is None:
            return
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        key = (node, session, name.file, status.st_ino)
        file = known.get(key) or _File(node, session, name, status.st_ino)
        old = key not in known and time.time() - status.st_mtime > _RECENT_SECONDS
        if old or not status.st_size or not stat.S_ISREG(status.st_mode):
            return
        if status.st_size < file.sent:
            file.forget()
        file.name, file.path, file.size, file.modified = name, Path(entry.path), status.st_size, status.st_mtime
        self._files[key] = file

    def _log_folders(self) -> Iterator[tuple[str, str, Path]]:
        """Node, session and folder of logs."""
        for node in _entries(self._root):
            for session in _entries(Path(node.path)):
                # `session_latest` is a link to another one of them.
                if session.name.startswith("session_") and session.is_dir(follow_symlinks=False):
                    yield node.name, session.name, Path(session.path) / "logs"

    def _folders(self) -> set[Path]:
        """The folders in which files grow, and new nodes and sessions appear.

        Not all below the root, for jobs' environments beside the logs have tens of thousands of them.
        """
        nodes = {Path(entry.path) for entry in _entries(self._root) if entry.is_dir()}
        logs = {folder for _, _, folder in self._log_folders()}
        below = {folder.parent for folder in logs} | logs | {folder / "old" for folder in logs}
        return {folder for folder in {self._root, *nodes, *below} if folder.is_dir()}

    def _warn(self, message: str, error: Exception) -> None:
        if time.monotonic() - self._warned > _WARN_SECONDS:
            self._warned = time.monotonic()
            _log.warning(message, str(error) or repr(error))


async def _changes(folders: set[Path]) -> AsyncGenerator[list[str], None]:
    """Paths that have changed; none of them where nothing has for half a second."""
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


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _said(answer: httpx.Response) -> str:
    return f"{answer.status_code} {answer.text[:200].strip()}"


async def carry(root: Path, gateway: str, token_file: Path | None) -> None:
    """Carry until SIGTERM."""
    # Proxies of the environment are for the internet, not for the gateway.
    async with httpx.AsyncClient(base_url=gateway, timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
        task = asyncio.ensure_future(Carrier(root, client, token_file).run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task


def main() -> None:
    """Carry the logs of this host."""
    config = GatewaySettings.load()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(carry(config.node_logs, config.gateway, config.token_path))


if __name__ == "__main__":
    main()
