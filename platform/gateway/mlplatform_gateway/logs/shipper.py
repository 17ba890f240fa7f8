"""Log shipper, `python -m mlplatform_gateway.logs.shipper`: sends the logs of a host's nodes to the gateway.

It stores nothing: the files on the nodes are the buffer, and the gateway records how much it has of each. The state in
this process only saves requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx

from mlplatform.client.certificates import verification
from mlplatform.errors import SettingsError
from mlplatform.secrets.credentials import TokenFile
from mlplatform.text.throttle import ThrottledWarning
from mlplatform_gateway.logs import wakeups
from mlplatform_gateway.logs.beneath import open_beneath
from mlplatform_gateway.logs.lines import NO_JOB, log_name
from mlplatform_gateway.logs.sent_file import SentFile
from mlplatform_gateway.settings import GatewaySettings

_REQUEST_BYTES = 256 << 10

_TURN_REQUESTS = 16
"""Limit per file before the next file has its turn: 4 MiB."""

_NAMING_BYTES = 4 << 10
"""Bytes sent to name a file's job: Ray writes the job id into the first line of a worker's log."""

_RECENT_SECONDS = 24 * 3600.0
_GIVE_UP_SECONDS = 600.0

_NEWEST_FILES = 10_000
"""Log files per node that are looked at, of 3 KiB each: 60,000, which a job made in 2 s, took 172 of 256 MiB."""

_RETRY_SECONDS = 1.0
_AGAIN_SECONDS = 0.05

_REJECTED_FILES = 3
"""A job's full buffer rejects only its own files; after three rejections the pass ends, as all would be rejected."""

_UNAVAILABLE = "The gateway does not accept logs, they stay on their nodes: %s"
_TIMEOUT_SECONDS = 20.0

_Key = tuple[str, str, str, int]
"""Node, session, name and inode."""

_log = logging.getLogger(__name__)


class _UnavailableError(Exception):
    """The gateway does not accept anything now."""


class LogShipper:
    """Sender of the bytes that the gateway lacks of the files in `<root>/<node>/session_*/logs`.

    Args:
        root: has one folder per node, which is that node's /tmp/ray.
        client: its base URL is the gateway's; it authenticates its requests.
        heartbeat: a file to touch after each pass that the gateway accepted.
    """

    def __init__(self, root: Path, client: httpx.AsyncClient, heartbeat: Path | None = None) -> None:
        self._root = root
        self._client = client
        self._heartbeat = heartbeat
        self._files: dict[_Key, SentFile] = {}
        self._instance: str | None = None
        self._unknown: set[tuple[str, str]] = set()
        """Sessions and Ray's job ids to which the gateway had no job in this pass."""
        self._sending = asyncio.Lock()
        self._warn = ThrottledWarning(_log)

    async def run(self) -> None:
        """Send when a file changes or a job's end waits for its log, and at least once per second; never returns."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_changes())
            group.create_task(self._send_on_request())

    async def _send_on_request(self) -> None:
        while True:
            if await wakeups.requested(self._client, [entry.name for entry in _entries(self._root)]):
                await self._send_all()

    async def _send_changes(self) -> None:
        while True:
            folders = self._folders()
            last = await self._send_all()
            try:
                async with contextlib.aclosing(wakeups.changes(folders)) as changes:
                    async for paths in changes:
                        late = time.monotonic() - last >= wakeups.HEARTBEAT_SECONDS
                        if late or any(log_name(path.rpartition("/")[2]) for path in paths):
                            last = await self._send_all()
                        if self._folders() != folders:
                            break
            except (OSError, RuntimeError) as error:
                # A folder has just been removed, or the host's limit on watches is reached: poll instead.
                self._warn("The logs cannot be watched and are polled once per second: %s", _text(error))
                await asyncio.sleep(wakeups.HEARTBEAT_SECONDS)

    async def _send_all(self) -> float:
        """Make passes until there is nothing to send; return the time of the last one on the monotonic clock."""
        async with self._sending:
            while True:
                try:
                    if not await self._pass():
                        return time.monotonic()
                except (_UnavailableError, SettingsError, httpx.HTTPError, OSError) as error:
                    self._warn(_UNAVAILABLE, _text(error))
                    await asyncio.sleep(_RETRY_SECONDS)

    async def _pass(self) -> bool:
        """Send new bytes of all files; return whether another pass should follow at once."""
        instance, started = self._instance, time.time()
        self._unknown.clear()
        nodes = self._list()
        behind, rejection = await self._send_files()
        if self._instance != instance:
            return True
        if rejection:
            self._warn(_UNAVAILABLE, _text(rejection))
            await asyncio.sleep(_RETRY_SECONDS)
        again = [node for node in sorted(nodes - behind) if await self._report(node, started)]
        if self._heartbeat and not rejection:
            self._heartbeat.touch()
        if again:
            await asyncio.sleep(_AGAIN_SECONDS)
        return bool(again or behind)

    async def _send_files(self) -> tuple[set[str], Exception | None]:
        """Send new bytes of each file; return the nodes with more to send, and the first rejection."""
        behind, rejections = set(), []
        # Drivers first: the gateway accepts a worker's lines only after it has seen the driver's session.
        files = [file for file in self._files.values() if not file.idle]
        for file in sorted(files, key=lambda file: (file.name.file, file.session, -file.name.age)):
            try:
                if await self._send(file):
                    continue
            except _UnavailableError as error:
                rejections.append(error)
                if len(rejections) == _REJECTED_FILES:
                    raise
            behind.add(file.node)
        return behind, rejections[0] if rejections else None

    async def _report(self, node: str, started: float) -> bool:
        """Report that all bytes as of `started` were sent; return whether the gateway wants another pass."""
        files = [file for file in self._files.values() if file.node == node]
        # A file of an unknown job counts from its last query: the job may have become known since.
        since = min([started, *(file.asked for file in files if file.undecided and not file.idle)])
        instance = self._instance
        answer = await self._request(
            "POST", f"/platform/logs/{quote(node)}", json={"pass_started": since, "instance": instance}
        )
        if answer.status_code != 200:
            raise _UnavailableError(_answer(answer))
        if not answer.json()["again"]:
            return False
        for file in files:
            if file.undecided:
                file.asked = 0.0
        return True

    async def _send(self, file: SentFile) -> bool:
        """Send a file up to the size of its listing; return False if another pass has to continue."""
        if time.time() < file.unknown_until:
            return True
        if (file.session, file.name.ray_job) in self._unknown:
            self._set_aside(file, time.time())
            return True
        try:
            with open_beneath(self._root / file.node, Path(file.path)) as content:
                if os.fstat(content.fileno()).st_ino != file.inode:
                    return False  # rotated since the listing; the next listing finds both
                for _ in range(_TURN_REQUESTS):
                    if file.idle or not await self._send_part(file, content):
                        return True
                return file.idle
        except PermissionError as error:
            _log.warning("%s cannot be read, it is not sent until it changes: %s", file.path, error)
            file.rejected = (file.size, file.modified)
            return True
        except (FileNotFoundError, NotADirectoryError):
            return False  # removed, or moved to `old` by Ray, where the next listing finds it

    async def _send_part(self, file: SentFile, content: BinaryIO) -> bool:
        """Query the offset, or send the next part; return False if the gateway does not accept the file, or not now."""
        asks = file.offset is None
        begin = file.offset or 0
        length = (_NAMING_BYTES if file.name.ray_job == NO_JOB else 0) if asks else _REQUEST_BYTES
        content.seek(begin)
        body = content.read(min(length, file.size - begin))
        query: dict[str, str | int] = {"session": file.session, "offset": begin, "inode": file.inode}
        if file.rewritten is not None:
            query["restart"] = file.rewritten
        if begin + len(body) < file.size:
            query["more"] = 1
        now = time.time()
        answer = await self._request("PUT", file.url, params=query, content=body)
        file.rewritten = None
        if answer.status_code not in (200, 409):
            self._rejected(file, answer, now)
            return False
        file.asked = 0.0
        expected = int(answer.json()["expected"])
        if expected > file.size:
            # Rewritten under its inode: the gateway cannot detect that itself.
            file.offset, file.sent, file.rewritten = None, 0, expected
        elif asks or answer.status_code == 409:
            file.offset = file.sent = expected
        else:
            file.offset, file.sent = expected, max(begin + len(body), expected)
        return True

    def _rejected(self, file: SentFile, answer: httpx.Response, now: float) -> None:
        """Record why the gateway did not accept a file; raise if the reason is not the file."""
        status = answer.status_code
        if status == 410:
            file.gone = True
        elif status == 404:
            self._set_aside(file, now)
            if file.name.ray_job not in (None, NO_JOB):
                self._unknown.add((file.session, file.name.ray_job))
        elif status in (400, 413):
            _log.warning("The gateway rejected %s, it is not sent until it changes: %s", file.path, _answer(answer))
            file.rejected = (file.size, file.modified)
        else:
            raise _UnavailableError(_answer(answer))

    def _set_aside(self, file: SentFile, now: float) -> None:
        """Query a file again later, because the gateway has no job for it."""
        file.forget()
        if now - file.modified > _GIVE_UP_SECONDS:
            file.rejected = (file.size, file.modified)
        else:
            file.asked = now

    async def _request(self, method: str, url: str, **options: Any) -> httpx.Response:
        answer = await self._client.request(method, url, **options)
        instance = answer.headers.get("X-Gateway-Instance")
        if instance and instance != self._instance:
            self._instance = instance
            for file in self._files.values():
                file.forget()
        return answer

    def _list(self) -> set[str]:
        """List all files; return the names of the nodes."""
        known, self._files = self._files, {}
        nodes = {entry.name for entry in _entries(self._root) if entry.is_dir()}
        for node in nodes:
            found = heapq.nlargest(_NEWEST_FILES, self._log_files(node), key=lambda file: _changed(file[1]))
            if len(found) == _NEWEST_FILES:
                self._warn("%s has %d log files or more; the oldest of them are not sent.", node, _NEWEST_FILES)
            for session, entry in found:
                self._look_at(entry, node, session, known)
        return nodes

    def _log_files(self, node: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yield the session and the entry of each log file of a node, one by one: a job can make any number."""
        for of, session, folder in self._log_folders():
            # Ray moves files of dead workers to `old`; a file moved during the listing is seen twice, not missed.
            for place in (folder, folder / "old") if of == node else ():
                if _is_folder(place):
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(place) as entries:
                        yield from ((session, entry) for entry in entries if log_name(entry.name))

    def _look_at(self, entry: os.DirEntry[str], node: str, session: str, known: dict[_Key, SentFile]) -> None:
        name = log_name(entry.name)
        if name is None:
            return
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        key = (node, session, name.file, status.st_ino)
        file = known.get(key) or SentFile(node, session, name, status.st_ino)
        old = key not in known and time.time() - status.st_mtime > _RECENT_SECONDS
        if old or not status.st_size or not stat.S_ISREG(status.st_mode):
            return
        if status.st_size < file.sent:
            file.forget()
        file.name, file.path, file.size, file.modified = name, entry.path, status.st_size, status.st_mtime
        self._files[key] = file

    def _log_folders(self) -> Iterator[tuple[str, str, Path]]:
        """Yield the node, the session and the path of each folder of logs."""
        for node in _entries(self._root):
            for session in _entries(Path(node.path)):
                # `session_latest` is a link to another one of them.
                if session.name.startswith("session_") and session.is_dir(follow_symlinks=False):
                    yield node.name, session.name, Path(session.path) / "logs"

    def _folders(self) -> set[Path]:
        """Return the folders in which log files grow, and in which new nodes and sessions appear.

        Not all folders below the root: the environments of jobs, beside the logs, have tens of thousands.
        """
        nodes = {Path(entry.path) for entry in _entries(self._root) if entry.is_dir()}
        logs = {folder for _, _, folder in self._log_folders()}
        below = {folder.parent for folder in logs} | logs | {folder / "old" for folder in logs}
        return {self._root, *nodes, *filter(_is_folder, below)}


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _changed(entry: os.DirEntry[str]) -> float:
    """Return the time of a file's last change; 0 if it was removed since it was found."""
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


def _is_folder(path: Path) -> bool:
    """Return whether a path that a job may replace is a folder, and not a link to one."""
    return path.is_dir() and not path.is_symlink()


def _text(error: Exception) -> str:
    return str(error) or repr(error)


def _answer(answer: httpx.Response) -> str:
    return f"{answer.status_code} {answer.text[:200].strip()}"


async def ship(config: GatewaySettings) -> None:
    """Ship logs until SIGTERM."""
    token = TokenFile(config.token_path)
    if config.shipper_token_path is not None:
        token = TokenFile(config.shipper_token_path, "MLPLATFORM_SHIPPER_TOKEN_PATH")
    # The environment's proxies are for the internet, not for the gateway.
    async with httpx.AsyncClient(
        base_url=config.gateway,
        auth=token.sign,
        timeout=_TIMEOUT_SECONDS,
        trust_env=False,
        verify=verification(config.gateway),
    ) as client:
        task = asyncio.ensure_future(LogShipper(config.node_logs, client, config.heartbeat).run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task


def main() -> None:
    """Ship the logs of this host."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(ship(GatewaySettings.load()))


if __name__ == "__main__":
    main()
