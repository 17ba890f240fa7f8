"""Uploaded packages lie in the gateway's own store, so that a job can start again when Ray has forgotten them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any
from weakref import WeakValueDictionary

import anyio
from anyio import to_thread

from mlplatform.gateway.errors import NoSuchPackageError, PackageError, PackageTooLargeError
from mlplatform.storage import objects

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,250}")

_EXTENSIONS = (".zip", ".tar.gz", ".tgz", ".tar.xz", ".whl")
"""`PACKAGE_UPLOAD_EXTENSIONS` of `ray/_common/runtime_env_package.py` in Ray 2.60."""

_SCHEME = "gcs://"

_FOLDER = "packages/"

_DRAFT = "package-"

_DRAFT_SECONDS = 3600.0

_KEPT_SECONDS = 86400.0

_CHUNK_BYTES = 1 << 20


class Packages:
    """Packages by name in a bucket or folder, under the keys `packages/<name>`.

    Every method raises PackageError for a name that Ray's clients would not give, and UnreachableError,
    AccessError or StorageError while the store cannot be used.

    Args:
        uri: `s3://bucket` or an absolute folder.
        limit_bytes: the largest package that is taken.
        spool: a folder on disk for packages on their way; None means the system's.
    """

    def __init__(self, uri: str, limit_bytes: int, spool: Path | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._store = objects.open_store(uri, "MLPLATFORM_GATEWAY_STORE")
        self._spool = spool
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._asked_for: dict[str, float] = {}

    async def exists(self, name: str) -> bool:
        key = _key(name)
        self._asked_for[name] = time.monotonic()
        return await to_thread.run_sync(self._has, key)

    async def put(self, name: str, stream: AsyncIterator[bytes]) -> None:
        """Keep what `stream` gives, whole or not at all; under a known name, read it to its end and change nothing.

        Ray names packages by their content, so what comes under a known name is the same.

        Raises:
            PackageTooLargeError: it is larger than `limit_bytes`.
            PackageError: it is empty.
        """
        key = _key(name)
        if await to_thread.run_sync(self._has, key):
            async for _ in self._bounded(name, stream):
                pass
            return
        with tempfile.NamedTemporaryFile(dir=self._spool, prefix=_DRAFT) as draft:
            async for part in self._bounded(name, stream):
                await to_thread.run_sync(draft.write, part)
            draft.flush()
            if not draft.tell():
                raise PackageError(f"The package {name} is empty; upload it again.")
            lock = self._locks.setdefault(key, anyio.Lock())
            async with lock:
                if not await to_thread.run_sync(self._has, key):
                    await to_thread.run_sync(self._store.upload, Path(draft.name), key, _uncounted)

    async def size_and_stream(self, name: str) -> tuple[int, AsyncIterator[bytes]]:
        """Bytes of the package in all, and the bytes; it is brought to this disk first, so that they do not break off.

        Raises:
            NoSuchPackageError: there is none.
        """
        file = await to_thread.run_sync(self._fetch, name)
        return os.fstat(file.fileno()).st_size, _parts(file)

    async def delete(self, name: str) -> None:
        """Forget a package; nothing happens when there is none."""
        await to_thread.run_sync(self._store.delete, _key(name))

    async def clean(self, needed: Collection[str]) -> None:
        """Remove what is not `needed`, was brought more than a day ago and was not asked for since.

        Whoever asks for a package does so before it submits a job with it, and brings it only where there is none.
        """
        least = time.monotonic() - _KEPT_SECONDS
        self._asked_for = {name: at for name, at in self._asked_for.items() if at >= least}
        oldest = datetime.now(UTC) - timedelta(seconds=_KEPT_SECONDS)
        for entry in await to_thread.run_sync(self._store.find, _FOLDER):
            name = entry.key.removeprefix(_FOLDER)
            if entry.modified < oldest and name not in needed and name not in self._asked_for:
                await self.delete(name)

    def tidy(self) -> None:
        """Remove from this disk what a process that was killed has left of packages on their way."""
        for left in Path(self._spool or tempfile.gettempdir()).glob(f"{_DRAFT}*"):
            # What cannot be removed is no reason for a gateway not to start.
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _DRAFT_SECONDS:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()

    def check_size(self, name: str, size: int) -> None:
        """Raises PackageTooLargeError for a package of `size` bytes or more that is too large."""
        if size > self.limit_bytes:
            raise PackageTooLargeError(
                f"The package {name} is larger than {self.limit_bytes / (1 << 20):g} MiB; move data out of the "
                "folder, or name it in .gitignore."
            )

    async def _bounded(self, name: str, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        size = 0
        async for part in stream:
            size += len(part)
            self.check_size(name, size)
            yield part

    def _has(self, key: str) -> bool:
        return any(entry.key == key for entry in self._store.find(key))

    def _fetch(self, name: str) -> IO[bytes]:
        if not self._has(_key(name)):
            raise missing_package(name)
        with tempfile.TemporaryDirectory(dir=self._spool, prefix=_DRAFT) as folder:
            path = Path(folder) / "package"
            self._store.download(_key(name), path, _uncounted)
            return path.open("rb")  # its name goes with the folder, its bytes when it is closed


def check_name(name: str) -> None:
    """Raises PackageError for a name that Ray's clients would not give."""
    if not _NAME.fullmatch(name) or not name.endswith(_EXTENSIONS):
        raise PackageError(
            f"{name[:300]!r} cannot name a package; take letters, digits and _.+- with one of the endings "
            f"{', '.join(_EXTENSIONS)}."
        )


def package_names(runtime_env: Mapping[str, Any]) -> list[str]:
    """The uploaded packages that a runtime environment names."""
    uris = [runtime_env.get("working_dir"), *(runtime_env.get("py_modules") or [])]
    return [uri.removeprefix(_SCHEME) for uri in uris if isinstance(uri, str) and uri.startswith(_SCHEME)]


def _key(name: str) -> str:
    check_name(name)
    return f"{_FOLDER}{name}"


def missing_package(name: str) -> NoSuchPackageError:
    return NoSuchPackageError(f"Package gcs://{name} does not exist")


def _uncounted(_: int) -> None:
    """Nobody watches the progress."""


async def _parts(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while part := await to_thread.run_sync(file.read, _CHUNK_BYTES):
            yield part
