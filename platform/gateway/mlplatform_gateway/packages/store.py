"""Store of uploaded packages, kept by the gateway so that a job can restart after Ray has lost them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, TypeVar
from weakref import WeakValueDictionary

import anyio
from anyio import to_thread

from mlplatform.storage import objects
from mlplatform_gateway.errors import NoSuchPackageError, PackageError, PackageExistsError, PackageTooLargeError

_Result = TypeVar("_Result")

_THREADS = 8
"""Calls of the object store at the same time; the database's transactions share 40 threads with everything else."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,250}")

_EXTENSIONS = (".zip", ".tar.gz", ".tgz", ".tar.xz", ".whl")
"""`PACKAGE_UPLOAD_EXTENSIONS` of `ray/_common/runtime_env_package.py` in Ray 2.60."""

_SCHEME = "gcs://"
_FOLDER = "packages/"
_DRAFT = "package-"
_DRAFT_SECONDS = 3600.0
_KEPT_SECONDS = 86400.0
_CHUNK_BYTES = 1 << 20

_NAMED_BY_CONTENT = re.compile(r"_ray_pkg_[0-9a-f]+\.\w.*", re.ASCII)
"""Name that Ray's client computes from the content (`packaging.py` of Ray 2.60); a wheel keeps its own name."""


class Packages:
    """Packages by name in a bucket or folder, under keys `packages/<name>`.

    Every method raises PackageError for a name that Ray's clients would not give, and UnreachableError,
    AccessError or StorageError while the store is unavailable.

    Args:
        uri: `s3://bucket` or an absolute folder.
        limit_bytes: size of the largest package that is accepted.
        spool: a folder on disk for packages in transfer; None means the system's.
    """

    def __init__(self, uri: str, limit_bytes: int, spool: Path | None = None) -> None:
        self.limit_bytes = limit_bytes
        # Of their own: a store that does not answer holds each for minutes, and the database needs threads, too.
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._store = objects.open_store(uri, "MLPLATFORM_GATEWAY_STORE")
        self._spool = spool
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._asked_for: dict[str, float] = {}

    async def _stored(self, call: Callable[..., _Result], *arguments: Any) -> _Result:
        """Run a call that waits for the object store in a thread."""
        return await to_thread.run_sync(call, *arguments, limiter=self._threads)

    async def exists(self, name: str) -> bool:
        """Return whether a package is stored; if so, it is kept for a day."""
        key = _key(name)
        # Together, so that `delete` keeps what is found. Names that do not exist would fill the memory.
        async with self._lock(key):
            found = await self._stored(self._has, key)
            if found:
                self._asked_for[name] = time.monotonic()
        return found

    async def put(
        self,
        name: str,
        stream: AsyncIterator[bytes],
        before_storing: Callable[[int, str], Awaitable[None]] | None = None,
    ) -> None:
        """Store the content of `stream`, whole or not at all; one that exists is never replaced, but kept for a day.

        Args:
            before_storing: called with size in bytes and SHA-256 of a package that does not exist yet.

        Raises:
            PackageTooLargeError: it is larger than `limit_bytes`.
            PackageError: it is empty.
            PackageExistsError: the name, which does not follow from the content, belongs to a package with another one.
        """
        key, sha256 = _key(name), hashlib.sha256()
        with tempfile.NamedTemporaryFile(dir=self._spool, prefix=_DRAFT) as draft:
            async for part in self._bounded(name, stream):
                await to_thread.run_sync(draft.write, part)
                sha256.update(part)
            draft.flush()
            if not draft.tell():
                raise PackageError(f"The package {name} is empty; upload it again.")
            async with self._lock(key):
                if not await self._stored(self._has, key):
                    if before_storing is not None:
                        await before_storing(draft.tell(), sha256.hexdigest())
                    await self._stored(self._store.upload, Path(draft.name), key, _uncounted)
                elif not is_named_by_content(name) and sha256.digest() != await self._stored(self._sha256, name):
                    raise PackageExistsError(
                        f"The package {name} exists with other content, which was uploaded under this name "
                        "before; change its version, and submit again."
                    )
                else:
                    self._asked_for[name] = time.monotonic()

    def _sha256(self, name: str) -> bytes:
        with self._fetch(name) as file:
            return hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]

    async def size_and_stream(self, name: str) -> tuple[int, AsyncIterator[bytes]]:
        """Return a package's size in bytes and its content, downloaded first, so that the stream is not interrupted.

        Raises:
            NoSuchPackageError: no package has the name.
        """
        file = await self._stored(self._fetch, name)
        return os.fstat(file.fileno()).st_size, _parts(file)

    async def delete(self, name: str) -> bool:
        """Delete a package, if there is one; return False if it was requested, and so is kept."""
        key = _key(name)
        # An upload that finds the package either marks it as requested before, or stores it again afterwards.
        async with self._lock(key):
            if self.was_requested(name):
                return False
            await self._stored(self._store.delete, key)
        return True

    async def unused(self, needed: Collection[str]) -> dict[str, int]:
        """Return the size of each package that is not `needed`, older than a day and not requested within a day.

        A client checks for a package before it submits a job with it, and uploads it only if it is missing.
        """
        least = time.monotonic() - _KEPT_SECONDS
        self._asked_for = {name: at for name, at in self._asked_for.items() if at >= least}
        oldest = datetime.now(UTC) - timedelta(seconds=_KEPT_SECONDS)
        entries = await self._stored(self._store.find, _FOLDER)
        old = {entry.key.removeprefix(_FOLDER): entry.size for entry in entries if entry.modified < oldest}
        return {name: size for name, size in old.items() if name not in needed and not self.was_requested(name)}

    def was_requested(self, name: str) -> bool:
        """Return whether a client has checked for a package or uploaded it again, and may be about to submit a job."""
        return name in self._asked_for

    def tidy(self) -> None:
        """Delete the partial packages that a killed process has left on this disk."""
        for left in Path(self._spool or tempfile.gettempdir()).glob(f"{_DRAFT}*"):
            # A file that cannot be deleted must not keep the gateway from starting.
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _DRAFT_SECONDS:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()

    def check_size(self, name: str, size: int) -> None:
        """Raise PackageTooLargeError if a package of at least `size` bytes is too large."""
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

    def _lock(self, key: str) -> anyio.Lock:
        return self._locks.setdefault(key, anyio.Lock())

    def _has(self, key: str) -> bool:
        return any(entry.key == key for entry in self._store.find(key))

    def _fetch(self, name: str) -> IO[bytes]:
        if not self._has(_key(name)):
            raise missing_package(name)
        with tempfile.TemporaryDirectory(dir=self._spool, prefix=_DRAFT) as folder:
            path = Path(folder) / "package"
            self._store.download(_key(name), path, _uncounted)
            return path.open("rb")  # its name disappears with the folder, its content when it is closed


def check_name(name: str) -> None:
    """Raise PackageError for a name that Ray's clients would not give."""
    if not _NAME.fullmatch(name) or not name.endswith(_EXTENSIONS):
        raise PackageError(
            f"Invalid package name {name[:300]!r}: use letters, digits and _.+- with one of the endings "
            f"{', '.join(_EXTENSIONS)}."
        )


def is_named_by_content(name: str) -> bool:
    """Return whether a package's name follows from its content, so that one with this name need not be uploaded."""
    return _NAMED_BY_CONTENT.fullmatch(name) is not None


def package_names(runtime_env: Mapping[str, Any]) -> list[str]:
    """Return the names of the uploaded packages in a runtime environment."""
    uris = [runtime_env.get("working_dir"), *(runtime_env.get("py_modules") or [])]
    return [uri.removeprefix(_SCHEME) for uri in uris if isinstance(uri, str) and uri.startswith(_SCHEME)]


def _key(name: str) -> str:
    check_name(name)
    return f"{_FOLDER}{name}"


def missing_package(name: str) -> NoSuchPackageError:
    """Return the error for a package that does not exist, in Ray's words."""
    return NoSuchPackageError(f"Package gcs://{name} does not exist")


def _uncounted(_: int) -> None:
    """Ignore the progress."""


async def _parts(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while part := await to_thread.run_sync(file.read, _CHUNK_BYTES):
            yield part
